"""Run the server: prints its two addresses when it is ready, and ends all jobs when it is told to stop."""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import threading
from concurrent import futures
from pathlib import Path

import grpc
import trustme
from beaker import beaker_pb2 as pb2
from beaker import beaker_pb2_grpc

from tests.fakes.beaker_server import rpc, web
from tests.fakes.beaker_server.state import TOKEN, State

_STREAMS = 32  # a log that is followed holds a thread


def serve(state: State) -> None:
    stopped = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopped.set())
    authority = trustme.CA()
    authority.cert_pem.write_to_path(state.folder / "roots.pem")
    own = authority.issue_cert("localhost")
    chain = b"".join(one.bytes() for one in own.cert_chain_pems)
    calls = grpc.server(futures.ThreadPoolExecutor(_STREAMS))
    beaker_pb2_grpc.add_BeakerServicer_to_server(rpc.servicer(state), calls)
    port = calls.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials([(own.private_key_pem.bytes(), chain)]))
    state.rpc_address = f"localhost:{port}"
    calls.start()
    pages = web.server(state)
    state.url = f"http://127.0.0.1:{pages.server_port}"
    threading.Thread(target=pages.serve_forever, daemon=True).start()
    (state.folder / "config.yml").write_text(
        f"user_token: {TOKEN}\nagent_address: {state.url}\nrpc_address: {state.rpc_address}\n"
        "default_workspace: ai2/demo\n"
    )
    print("ready", state.rpc_address, state.url, flush=True)
    stopped.wait()
    pages.shutdown()
    calls.stop(None)
    for job in state.jobs():
        job.cancel(pb2.CANCELATION_CODE_MANUAL, "the server ends", warn=False)
        job.thread.join(5)
    # Whole programs were installed there, many times: not waited for.
    subprocess.Popen(["rm", "-rf", state.folder / "jobs"], start_new_session=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--state", type=Path, required=True, help="an empty folder for all it holds")
    parser.add_argument("--stop-sec", type=float, default=10.0, help="seconds between a job's SIGTERM and its SIGKILL")
    given = parser.parse_args()
    if os.geteuid() != 0:
        print("jobs need root", file=sys.stderr)
        return 1
    folder = given.state.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    serve(State(folder, stop_sec=given.stop_sec))
    return 0


if __name__ == "__main__":
    sys.exit(main())
