"""A fake Modal for the tests, and the real client in this process bound to it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.modal_server.handle import ModalServer
from tests.run_kit import Cell, agent

# Credentials that look right, for what is done offline.
BY_VARIABLES = {"MODAL_TOKEN_ID": "ak-1", "MODAL_TOKEN_SECRET": "as-1"}
MODAL = ("backend=modal", "retry.wait_sec=0")
HELLO = ("benchmark=hello", *MODAL)
ADDITION = ("benchmark=addition", "model=nano", *MODAL, *agent("Honest"))
ON_GPU = ("benchmark.gpus=1", "benchmark.gpu_types=[H100]")

NEEDS_ROOT = "the fake Modal makes its sandboxes with namespaces and mounts of its own: it needs root"


@pytest.fixture(scope="session")
def running_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModalServer]:
    if os.geteuid() != 0:
        pytest.skip(NEEDS_ROOT)
    server = ModalServer.start(tmp_path_factory.mktemp("modal"), "--commit-sec", "0.5")
    # For the whole session: the client in this process keeps its first connection.
    os.environ.update(server.env)
    os.environ["MODAL_SANDBOX_V2"] = "1"  # as Harbor sets it
    os.environ["PTB_STATE"] = str(tmp_path_factory.mktemp("state"))
    yield server
    server.stop()
    for name in (*server.env, "MODAL_SANDBOX_V2", "PTB_STATE"):
        os.environ.pop(name, None)


@pytest.fixture
def modal_server(running_server: ModalServer) -> Iterator[ModalServer]:
    """The server, without faults and volumes before and after; whether a test may leave some, it says itself."""
    running_server.mend()
    yield running_server
    running_server.mend()
    delete_volumes(running_server)


def nothing_is_left(server: ModalServer) -> bool:
    return server.sandboxes() == [] and server.volumes() == {}


def start(tmp_path: Path, *arguments: str) -> tuple[subprocess.Popen[str], Cell]:
    command = [sys.executable, "-m", "ptb_runner", *arguments, f"hydra.run.dir={tmp_path / 'run'}"]
    pipe = subprocess.PIPE
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, text=True, cwd=tmp_path)
    return process, Cell(tmp_path / "run")


def wait_until(found: Any, timeout_sec: float = 90) -> None:
    deadline = time.monotonic() + timeout_sec
    while not found():
        assert time.monotonic() < deadline, "not in time"
        time.sleep(0.05)


def delete_volumes(server: ModalServer) -> None:
    import modal

    for name in server.volumes():
        modal.Volume.objects.delete(name)
