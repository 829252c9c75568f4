"""Where the runners of a sweep's cells live: one module a launcher, each with a function `launch`.

Launchers differ only in where they call `run_cell`; a cell's folder is the whole state.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
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
    "beaker": "ptb_runner.launch.beaker",
}

IN_JOBS = frozenset(
    {"submitit_local", "slurm", "modal", "beaker"}
)  # launchers whose cells outlive the process that started them


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
    kind = _kind(cell)
    return kind in ("modal", "beaker") and _module(kind).bring(cell)


def _kind(folder: Path) -> str:
    return (read_json(folder / "launcher.json") or {}).get("kind", "")


def notes(folder: Path) -> Iterator[str]:
    """What is to be told of a sweep's or a cell's jobs beside its status, in lines; none where that says it all."""
    if _kind(folder) == "beaker":
        yield from _module("beaker").notes(folder)


def prints_log(cell: Path, follow: bool) -> bool:
    """Print what the cell's job prints, where that is kept elsewhere; False: its runner.log is here."""
    if _kind(cell) != "beaker":
        return False
    _module("beaker").logs(cell, follow=follow)
    return True


def preview(sweep: Path, cells: list[Cell]) -> Iterator[str]:
    """What would be submitted for some cells, for a dry run."""
    if cells[0].config.launcher.kind == "beaker":
        yield from _module("beaker").preview(sweep, cells)


def checks(config: Config) -> Iterator[tuple[str, bool, str]]:
    """For `ptb doctor`: name, whether it failed, and what was found or what to do."""
    faults = problems([config])
    yield from (("launcher", True, fault) for fault in faults)
    if not faults and config.launcher.kind == "beaker":
        yield from _module("beaker").checks(config)
