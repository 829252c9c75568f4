"""Sweeps of small cells at the fake Beaker, whose jobs only copy the results of a cell that ran before."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ptb_runner.launch import beaker_results
from tests.fakes.beaker_server.handle import BeakerServer

if TYPE_CHECKING:
    from tests.conftest import Ran

CELL = ("benchmark=hello", "agent=oracle", "backend=bubblewrap", "launcher=beaker")
HERE = ("launcher.workspace=ai2/demo", "launcher.hf_token_secret=null", "launcher.poll_sec=0.1")


@pytest.fixture(scope="session")
def finished_cell(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a cell that is over, as CELL would leave it."""
    folder = tmp_path_factory.mktemp("done")
    cell = [*CELL[:3], "launcher=inline", f"hydra.run.dir={folder / 'cell'}"]
    subprocess.run([sys.executable, "-m", "ptb_runner", *cell], check=True, cwd=folder, capture_output=True)
    return folder / "cell"


@dataclass
class Cells:
    """Commands about one sweep, `sweep`, at the server."""

    server: BeakerServer
    sweep: Path
    done: Path
    ptb: Callable[..., Ran]

    def jobs_do(self, *options: str) -> None:
        """What jobs that begin from now on do: the options of standin_job.py."""
        script = Path(__file__).parent / "beaker" / "standin_job.py"
        self.server.run_instead(sys.executable, str(script), str(self.done), *options)

    def submit(self, *overrides: str) -> Ran:
        """A sweep of CELL, to which overrides are added, not waited for."""
        options = ("launcher.wait=false", f"hydra.sweep.dir={self.sweep}")
        return self.ptb("-m", *CELL, *HERE, *options, *overrides)

    def open_gate(self) -> None:
        (self.server.weka("oe-adapt-default") / "gate").touch()

    def record(self, cell: int | None = None) -> dict[str, Any]:
        """launcher.json, of a cell or of the sweep."""
        return json.loads((self.sweep / ("" if cell is None else str(cell)) / "launcher.json").read_text())

    def state(self, cell: int = 0) -> str:
        return json.loads((self.sweep / str(cell) / "status.json").read_text())["state"]

    def experiments(self) -> list[dict[str, Any]]:
        """Those of the sweep."""
        return [one for one in self.server.experiments() if self.record()["token"] in one["name"]]

    def jobs(self, cell: int = 0) -> list[dict[str, Any]]:
        return self.server.jobs(self.record(cell)["job_id"])

    def wait_for_jobs(self, cell: int, found: Callable[[list[dict[str, Any]]], Any]) -> list[dict[str, Any]]:
        self.server.wait_for(lambda _: found(self.jobs(cell)))
        return self.jobs(cell)

    def wait_until_at_work(self, cell: int = 0) -> dict[str, Any]:
        """The first job, once it has said something: from then on it minds signals."""
        return self.wait_for_jobs(cell, lambda jobs: jobs and "of cell" in jobs[0]["log"])[0]


@pytest.fixture
def beaker_cells(beaker_server: BeakerServer, finished_cell: Path, tmp_path: Path, ptb: Callable[..., Ran]) -> Cells:
    (beaker_server.weka("oe-adapt-default") / "gate").unlink(missing_ok=True)
    found = Cells(beaker_server, tmp_path / "sweep", finished_cell, ptb)
    found.jobs_do()
    return found


@pytest.fixture
def weka_here(beaker_cells: Cells, monkeypatch: pytest.MonkeyPatch) -> None:
    """This machine mounts weka, too."""
    monkeypatch.setattr(beaker_results, "ROOT", beaker_cells.server.folder)
