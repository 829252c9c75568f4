"""launcher=modal: runners in Modal functions, with the real client and its own container program on a fake Modal."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests import run_kit
from tests.fakes.modal_server.handle import ModalServer
from tests.run_kit import QUICK, agent

pytestmark = [pytest.mark.modal, pytest.mark.timeout(300)]

MODAL = ("launcher=modal", "launcher.sync_sec=1", "launcher.poll_sec=0.5")
SECRET = "sk-made-up-for-this-test-4711"


@dataclass(frozen=True)
class Sweep:
    folder: Path
    server: ModalServer

    def cell(self, number: int = 0) -> run_kit.Cell:
        return run_kit.Cell(self.folder / str(number))

    @property
    def launcher(self) -> dict[str, Any]:
        return json.loads((self.folder / "launcher.json").read_text())

    @property
    def calls(self) -> list[dict[str, Any]]:
        return self.server.state()["function_calls"]

    def wait_for(self, said: Callable[[], bool], timeout_sec: float = 90) -> None:
        deadline = time.monotonic() + timeout_sec
        while not said():
            assert time.monotonic() < deadline, [Path(one["output"]).read_text()[-3000:] for one in self.calls]
            time.sleep(0.2)

    def left(self) -> list[Any]:
        """What is left of it at Modal."""
        state = self.server.state()
        running = [one for one in (*state["function_calls"], *state["sandboxes"]) if one["running"]]
        return [*running, *state["apps"], *self.server.volumes()]


@pytest.fixture
def sweep(modal_server, tmp_path) -> Iterator[Sweep]:
    yield Sweep(tmp_path / "sweep", modal_server)
    for call in modal_server.state()["function_calls"]:
        if call["running"]:
            os.kill(call["pid"], 9)


def test_a_sweep_runs_in_functions(ptb, sweep):
    options = (*QUICK, *MODAL, f"hydra.sweep.dir={sweep.folder}")
    ran = ptb("-m", *options, *agent("Honest"), "seed=1,2", "attempts=2")
    assert ran.code == 0, ran.out + ran.err
    assert [sweep.cell(number).outcomes for number in (0, 1)] == [["scored"] * 2] * 2
    assert "4/4" in ran.out
    assert sweep.left() == []
    assert not sweep.launcher["app"]
