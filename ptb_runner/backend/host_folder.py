"""Hand-offs as folders of the cell, for backends whose sandboxes see this machine's files."""

from __future__ import annotations

import shutil

from ptb_runner.cell import Cell


def handoff(cell: Cell, trial: str) -> str:
    return str(cell.handoff / trial)


def make_handoff(cell: Cell, trial: str) -> None:
    (cell.handoff / trial).mkdir(parents=True, exist_ok=True)


def settle_handoff(cell: Cell, trial: str, keep: bool) -> None:
    if not keep:
        shutil.rmtree(cell.handoff / trial, ignore_errors=True)


def has_handoff(cell: Cell, trial: str) -> bool:
    return (cell.handoff / trial / "collect.json").is_file()


def fetch_commands(cell: Cell) -> list[str]:
    return []  # they are here already
