"""One cell after another, one trial at a time, in this process, with a debugger where the runner itself fails."""

from __future__ import annotations

import pdb
import sys
import traceback
from pathlib import Path

from rich.console import Console

from ptb_runner.cell import Cell
from ptb_runner.launch import Ended
from ptb_runner.run import run_cell


def launch(sweep: Path, cells: list[Cell], out: Console) -> Ended:
    """Run the cells; at the first error of the runner show the traceback and open pdb there."""
    for cell in cells:
        out.print(f"cell {cell.id} in {cell.folder}", markup=False)
        debugged(cell.folder)
    return Ended.over


def debugged(folder: Path) -> None:
    """Run one cell under the eyes of pdb."""
    try:
        run_cell(folder)
    except Exception:
        traceback.print_exc()
        pdb.post_mortem(sys.exc_info()[2])
        raise
