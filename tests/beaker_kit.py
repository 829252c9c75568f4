"""A fake Beaker for the tests, and the real client in this process bound to it."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.beaker_server.handle import BeakerServer

NEEDS_ROOT = "the fake Beaker runs jobs with namespaces and mounts of their own: it needs root"


@pytest.fixture(scope="session")
def running_beaker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BeakerServer]:
    if os.geteuid() != 0:
        pytest.skip(NEEDS_ROOT)
    server = BeakerServer.start(tmp_path_factory.mktemp("beaker"), "--stop-sec", "30")
    with pytest.MonkeyPatch.context() as patch:  # for the whole session: gRPC reads its certificates once
        for name, value in server.env.items():
            patch.setenv(name, value)
        yield server
    server.stop()


@pytest.fixture
def beaker_server(running_beaker: BeakerServer) -> Iterator[BeakerServer]:
    """The server, without faults before and after; what earlier tests have made is still there."""
    running_beaker.mend()
    yield running_beaker
    running_beaker.mend()


@pytest.fixture
def beaker_client(beaker_server: BeakerServer) -> Iterator[Any]:
    """The real client."""
    from beaker import Beaker

    with Beaker.from_env(check_for_upgrades=False) as client:
        yield client


@pytest.fixture
def silent_address() -> Iterator[str]:
    """An address where connections are taken and nothing is ever said."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


def config_for(folder: Path, address: str, token: str = "some-token") -> Path:
    """A client's configuration file that names another server or another token."""
    file = folder / "other-beaker.yml"
    file.write_text(f"user_token: {token}\nagent_address: http://{address}\nrpc_address: {address}\n")
    return file
