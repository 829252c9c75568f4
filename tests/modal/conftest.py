"""A fake Modal for the tests, and the real client in this process bound to it."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.fakes.modal_server.handle import ModalServer

NEEDS_ROOT = "the fake Modal makes its sandboxes with namespaces and mounts of its own: it needs root"


@pytest.fixture(scope="session")
def running_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModalServer]:
    if os.geteuid() != 0:
        pytest.skip(NEEDS_ROOT)
    server = ModalServer.start(tmp_path_factory.mktemp("modal"), "--commit-sec", "0.5")
    # For the whole session: the client in this process keeps its first connection.
    os.environ.update(server.env)
    os.environ["MODAL_SANDBOX_V2"] = "1"  # as Harbor sets it
    yield server
    server.stop()
    for name in (*server.env, "MODAL_SANDBOX_V2"):
        os.environ.pop(name, None)


@pytest.fixture
def modal_server(running_server: ModalServer) -> Iterator[ModalServer]:
    """The server, without faults before and after; what a test leaves in it is that test's own failure."""
    running_server.mend()
    yield running_server
    running_server.mend()
