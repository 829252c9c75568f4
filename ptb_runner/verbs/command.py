"""What verbs share: their arguments, and the folders that users name."""

from __future__ import annotations

import argparse
import logging
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from ptb_runner import cell as cells
from ptb_runner.cell import Cell
from ptb_runner.explain import UsageError, nearest
from ptb_runner.sweepfile import read_sweep


class Parser(argparse.ArgumentParser):
    """argparse with our way of saying what is wrong."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{self.prog}: {message}\n  {' '.join(self.format_usage().split())}")


def parser_of(verb: Callable[[list[str]], int], *, folder: bool = True, trial: bool = False) -> Parser:
    """The arguments of a verb: those that all have."""
    text = " ".join((verb.__doc__ or "").split())
    made = Parser(prog=f"ptb {verb.__name__}", description=text)
    if folder:
        made.add_argument("folder", type=Path, help="the folder of a sweep or of a single cell")
    if trial:
        made.add_argument(
            "which", nargs="?", default="", metavar="CELL[/TRIAL]", help="number of the cell, name of a trial"
        )
    return made


def is_sweep(folder: Path) -> bool:
    """Whether a folder is a sweep's; raises UsageError when it is neither a sweep's nor a cell's."""
    if (folder / "sweep.yaml").exists():
        return True
    if not (folder / "cell.yaml").exists():
        if not folder.exists():
            raise UsageError(f"{folder}: there is no such folder\n  runs are below outputs/, sweeps below multirun/")
        raise UsageError(f"{folder}: neither a sweep's folder nor a cell's, it has no sweep.yaml and no cell.yaml")
    return False


def cells_of(folder: Path) -> list[Cell]:
    if not is_sweep(folder):
        return [cells.read_cell(folder)]
    return [cells.read_cell(folder / entry["folder"]) for entry in read_sweep(folder)["cells"]]


def cell_and_trial(folder: Path, which: str, verb: str) -> tuple[Path, str]:
    """The cell's folder and the trial's name that the user means."""
    if not is_sweep(folder):
        return folder, which
    number, _, trial = which.partition("/")
    entries = read_sweep(folder)["cells"]
    if not number and len(entries) == 1:
        return folder / entries[0]["folder"], trial
    if not number:
        raise UsageError(f"{folder}: a sweep; which cell's?\n  ptb {verb} {folder} CELL, with the number of a cell")
    if not (folder / number / "cell.yaml").exists():
        raise UsageError(f"{folder}: has no cell {number!r}\n  ptb status {folder} lists them")
    return folder / number, trial


def outcomes_in(text: str, flag: str) -> list[str]:
    from ptb_runner.outcome import Outcome

    names = [name for name in text.split(",") if name]
    for name in names:
        if name not in Outcome.__members__:
            guess = nearest(name, Outcome.__members__)
            hint = f"did you mean {guess}?" if guess else f"they are: {', '.join(Outcome.__members__)}"
            raise UsageError(f"{flag} {name}: no such outcome\n  {hint}")
    return names


def log_to(folder: Path) -> None:
    handler = logging.FileHandler(folder / "runner.log")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
