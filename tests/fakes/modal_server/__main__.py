"""Run the server: prints its two addresses when it is ready, and ends all sandboxes when it is told to stop."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
from pathlib import Path

from aiohttp import web
from grpclib.server import Server
from modal_proto import api_grpc, task_command_router_grpc

from tests.fakes.modal_server import blobs, root
from tests.fakes.modal_server.account import Account
from tests.fakes.modal_server.functions import Functions
from tests.fakes.modal_server.images import Images
from tests.fakes.modal_server.router import Router
from tests.fakes.modal_server.sandboxes import Sandboxes
from tests.fakes.modal_server.state import State
from tests.fakes.modal_server.volumes import Volumes
from tests.fakes.modal_server.wire import check_tokens, service

PARTS = (Functions, Account, Images, Volumes, Sandboxes)  # the first one that plays a call counts


async def serve(state: State) -> None:
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    control = service(api_grpc.ModalClientBase, state, [part(state) for part in PARTS])
    router = service(task_command_router_grpc.TaskCommandRouterBase, state, [Router(state)])
    server = Server([control, router])
    check_tokens(server)
    await server.start("127.0.0.1", 0)
    assert isinstance(server._server, asyncio.Server)
    state.url = f"http://127.0.0.1:{server._server.sockets[0].getsockname()[1]}"
    runner = web.AppRunner(blobs.app(state))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    state.blob_url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    print("ready", state.url, state.blob_url, flush=True)
    await stopped.wait()
    for call in state.function_calls.values():
        call.kill()
    for sandbox in state.sandboxes.values():
        sandbox.end("TERMINATED", 137)
    await asyncio.gather(*(call.task for call in state.function_calls.values()), return_exceptions=True)
    await asyncio.gather(*(sandbox.done.wait() for sandbox in state.sandboxes.values()))
    server.close()
    await runner.cleanup()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--state", type=Path, required=True, help="an empty folder for all it holds")
    parser.add_argument("--commit-sec", type=float, default=5.0, help="seconds between background commits of volumes")
    given = parser.parse_args()
    if os.geteuid() != 0:
        print("sandboxes need root", file=sys.stderr)
        return 1
    folder = given.state.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    root.make_base(folder / "base")
    asyncio.run(serve(State(folder, commit_sec=given.commit_sec)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
