"""Where the runners of a sweep's cells live: one module a launcher, each with a function `launch`.

Launchers differ only in where they call `run_cell`; a cell's folder is the whole state.
"""

from __future__ import annotations

import importlib
from enum import Enum
from pathlib import Path

from rich.console import Console

from ptb_runner.cell import Cell
from ptb_runner.config import Config


class Ended(Enum):
    """How a launch ended for the process that launched."""

    over = "over"
    interrupted = "interrupted"
    detached = "detached"


MODULES = {
    "inline": "ptb_runner.launch.inline",
    "debug": "ptb_runner.launch.debug",
    "submitit_local": "ptb_runner.launch.submitit",
    "slurm": "ptb_runner.launch.submitit",
}


IN_JOBS = frozenset({"submitit_local", "slurm"})  # launchers whose cells outlive the process that started them


def launch(sweep: Path, cells: list[Cell], out: Console) -> Ended:
    """Run what is missing of the cells of a sweep, where `launcher` says; they all have the same launcher."""
    module = importlib.import_module(MODULES[cells[0].config.launcher.kind])
    return module.launch(sweep, cells, out)


def problems(cells: list[Config]) -> list[str]:
    """What would keep cells from running with their launcher, a text of one or two lines each."""
    settings = cells[0].launcher
    if settings.kind not in IN_JOBS:
        return []
    from ptb_runner.launch import submitit

    return submitit.problems(settings, cells)


def refresh(sweep: Path, kind: str) -> None:
    """Bring the cells' states up to what became of their jobs, where they have jobs."""
    if kind in IN_JOBS:
        from ptb_runner.launch import submitit

        submitit.refresh(sweep)
