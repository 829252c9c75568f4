"""Where the runners of a sweep's cells live: one module a launcher, each with a function `launch`.

Launchers differ only in where they call `run_cell`; a cell's folder is the whole state.
"""

from __future__ import annotations

import importlib
from enum import Enum
from pathlib import Path
from typing import Any

from rich.console import Console

from ptb_runner.cell import Cell, read_json
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
    "modal": "ptb_runner.launch.modal",
}

IN_JOBS = frozenset({"submitit_local", "slurm", "modal"})  # launchers whose cells outlive the process that started them


def launch(sweep: Path, cells: list[Cell], out: Console) -> Ended:
    """Run what is missing of the cells of a sweep, where `launcher` says; they all have the same launcher."""
    return _module(cells[0].config.launcher.kind).launch(sweep, cells, out)


def _module(kind: str) -> Any:
    return importlib.import_module(MODULES[kind])


def problems(cells: list[Config]) -> list[str]:
    """What would keep cells from running with their launcher, a text of one or two lines each."""
    settings = cells[0].launcher
    return _module(settings.kind).problems(settings, cells) if settings.kind in IN_JOBS else []


def refresh(sweep: Path, kind: str) -> None:
    """Bring the cells' states up to what became of their jobs, where they have jobs."""
    if kind in IN_JOBS:
        _module(kind).refresh(sweep)


def cancel(sweep: Path, kind: str, numbers: list[int] | None = None) -> list[int]:
    """Cancel jobs of a sweep (None: all), wait for their end, and return the numbers of the cells that still run."""
    return _module(kind).cancel(sweep, numbers)


def bring(cell: Path) -> bool:
    """Bring what a cell's runner has written elsewhere to its folder here; whether there is one that goes on."""
    record = read_json(cell / "launcher.json") or {}
    return record.get("kind") == "modal" and _module("modal").bring(cell)
