"""Where the runners of a sweep's cells live: one module a launcher, each with a function `launch`.

Launchers differ only in where they call `run_cell`; a cell's folder is the whole state.
"""

from __future__ import annotations

import importlib
from enum import Enum
from pathlib import Path

from rich.console import Console

from ptb_runner.cell import Cell


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


def launch(sweep: Path, cells: list[Cell], out: Console) -> Ended:
    """Run what is missing of the cells of a sweep, where `launcher` says; they all have the same launcher."""
    module = importlib.import_module(MODULES[cells[0].config.launcher.kind])
    return module.launch(sweep, cells, out)
