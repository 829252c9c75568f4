"""Run a command while a port of this sandbox's own loopback leads to a Unix socket: relay.py SOCKET PORT COMMAND..."""

import contextlib
import socket
import subprocess
import sys
import threading


def pipe(source: socket.socket, sink: socket.socket) -> None:
    """Pass on what comes, and that nothing more will."""
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            sink.sendall(data)
    with contextlib.suppress(OSError):
        sink.shutdown(socket.SHUT_WR)


def connect(client: socket.socket, path: str) -> None:
    """Both directions of one connection."""
    with client, socket.socket(socket.AF_UNIX) as far:
        far.connect(path)
        back = threading.Thread(target=pipe, args=(far, client), daemon=True)
        back.start()
        pipe(client, far)
        back.join()


def serve(server: socket.socket, path: str) -> None:
    """A thread a connection."""
    while True:
        client, _ = server.accept()
        threading.Thread(target=connect, args=(client, path), daemon=True).start()


def main(path: str, port: str, *command: str) -> int:
    """The command's exit code."""
    with socket.create_server(("127.0.0.1", int(port))) as server:
        threading.Thread(target=serve, args=(server, path), daemon=True).start()
        return subprocess.run(command, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
