"""The first process of a bubblewrap sandbox: starts and ends commands for the runner outside.

Run by the runner as `python -I -S init.py FD`, where FD is one end of a SOCK_SEQPACKET pair. Standard library only.
It is pid 1 of the sandbox's pid namespace: commands cannot signal it, and when it ends, everything in the sandbox ends.

From the runner:  {"run": id} with the descriptors [request, stdout, stderr] or [request, stdout, stderr, stdin], where
                  request is a file with the JSON object {"command", "cwd", "env"};
                  {"kill": id} ends that command and all that descends from it.
To the runner:    {"ready": true} once, and {"exit": id, "code": n} for each command, as a shell counts (128 + signal).

Every command has a supervisor between it and this process. The supervisor is a "child subreaper": whatever the command
leaves behind, also after a double fork or setsid, becomes the supervisor's child, and so can be found and ended.
"""

# Importing pathlib would take a third of this program's start.
# ruff: noqa: PTH103, PTH123, PTH208

import contextlib
import ctypes
import json
import os
import select
import signal
import socket
import sys
import time
from typing import NoReturn

PR_SET_DUMPABLE = 4
PR_SET_CHILD_SUBREAPER = 36
KEYCTL_JOIN_SESSION_KEYRING = 1
KEYCTL_NUMBER = {"x86_64": 250, "aarch64": 219}

COULD_NOT_START = 126
KILLED = 128 + signal.SIGKILL

libc = ctypes.CDLL(None, use_errno=True)


def main() -> None:
    channel = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET, fileno=int(sys.argv[1]))
    channel.set_inheritable(False)
    harden()
    serve(channel)


def harden() -> None:
    """Keeps commands, which run as the same user, away from this process's memory and descriptors."""
    os.umask(0o022)
    libc.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)
    # A fresh session keyring hides the keys of the user who started the runner; kernels without keyrings refuse.
    if number := KEYCTL_NUMBER.get(os.uname().machine):
        libc.syscall(number, KEYCTL_JOIN_SESSION_KEYRING, None)


def serve(channel: socket.socket) -> None:
    """Answers requests until the runner closes its end, or dies."""
    wake, woken = os.pipe()
    os.set_blocking(wake, False)
    os.set_blocking(woken, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
    supervisors: dict[int, int] = {}
    poller = select.poll()
    poller.register(wake, select.POLLIN)
    poller.register(channel, select.POLLIN)
    tell(channel, {"ready": True})
    while True:
        ready = {fd for fd, _ in poller.poll()}
        if wake in ready:
            os.read(wake, 4096)
            report_exits(channel, supervisors)
        if channel.fileno() in ready and not obey(channel, supervisors):
            return


def tell(channel: socket.socket, message: dict[str, int]) -> None:
    channel.send(json.dumps(message).encode())


def obey(channel: socket.socket, supervisors: dict[int, int]) -> bool:
    """Carries out one request. False when the runner is gone. `supervisors`: pid -> id of the command."""
    message, fds, _, _ = socket.recv_fds(channel, 4096, 4)
    if not message:
        return False
    for fd in fds:
        # The module's own flag for this, MSG_CMSG_CLOEXEC, is ignored by recv_fds().
        os.set_inheritable(fd, False)
    request = json.loads(message)
    if "kill" in request:
        for pid, number in supervisors.items():
            if number == request["kill"]:
                os.kill(pid, signal.SIGTERM)
        return True
    pid = os.fork()
    if pid == 0:
        channel.close()
        supervise(fds)
    supervisors[pid] = request["run"]
    for fd in fds:
        os.close(fd)
    return True


def report_exits(channel: socket.socket, supervisors: dict[int, int]) -> None:
    """Collects whatever ended; orphans of finished commands end up here too and are only reaped."""
    for pid, status in ended():
        if pid in supervisors:
            tell(channel, {"exit": supervisors.pop(pid), "code": exit_code(status)})


def ended() -> list[tuple[int, int]]:
    """(pid, status) of every child that has ended and was not collected yet."""
    found = []
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return found
        if pid == 0:
            return found
        found.append((pid, status))


def exit_code(status: int) -> int:
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def supervise(fds: list[int]) -> NoReturn:
    """Runs one command and exits as it did. SIGTERM: ends the command and all its descendants first."""
    waited_for = {signal.SIGCHLD, signal.SIGTERM}
    signal.pthread_sigmask(signal.SIG_BLOCK, waited_for)
    signal.set_wakeup_fd(-1)
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    command = os.fork()
    if command == 0:
        become_command(*fds)
    for fd in fds:
        os.close(fd)
    while True:
        if signal.sigwait(waited_for) == signal.SIGTERM:
            end_descendants()
            os._exit(KILLED)
        for pid, status in ended():
            if pid == command:
                os._exit(exit_code(status))


def end_descendants() -> None:
    """Kills until no child is left. The orphans of those killed become children, so none is missed."""
    while True:
        for pid in descendants(os.getpid()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        ended()
        try:
            os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return
        time.sleep(0.001)


def descendants(ancestor: int) -> set[int]:
    children: dict[int, list[int]] = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/stat", "rb") as stat:
                # The second field is the program's name in parentheses and may itself hold anything.
                parent = int(stat.read().rpartition(b")")[2].split()[1])
        except OSError:
            continue
        children.setdefault(parent, []).append(int(name))
    found: set[int] = set()
    waiting = [ancestor]
    while waiting:
        for child in children.get(waiting.pop(), []):
            found.add(child)
            waiting.append(child)
    return found


def become_command(request: int, stdout: int, stderr: int, stdin: int | None = None) -> NoReturn:
    try:
        if stdin is None:
            stdin = os.open("/dev/null", os.O_RDONLY)
        for fd, target in ((stdin, 0), (stdout, 1), (stderr, 2)):
            os.dup2(fd, target)
        with os.fdopen(request, encoding="utf-8", errors="surrogateescape") as file:
            wanted = json.load(file)
        os.setsid()
        usual_signals()
        os.makedirs(wanted["cwd"], exist_ok=True)
        os.chdir(wanted["cwd"])
        os.execve("/bin/bash", ["bash", "-c", wanted["command"]], wanted["env"])
    except BaseException as problem:
        os.write(2, f"sandbox: cannot start the command: {problem}\n".encode(errors="replace"))
    os._exit(COULD_NOT_START)


def usual_signals() -> None:
    """Undoes what Python and the runner's own parents changed: an ignored SIGPIPE or SIGINT would be inherited."""
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


if __name__ == "__main__":
    main()
