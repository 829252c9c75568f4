"""What all launchers do whose cells outlive the process that started them: choose what is due, wait, cancel."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from rich.console import Console

from ptb_runner import backend, trial_folders, watch
from ptb_runner.cell import Cell, mark, now, read_cell, read_json, write_json
from ptb_runner.config import JobsConfig, OnInterrupt
from ptb_runner.explain import UsageError
from ptb_runner.launch import Ended
from ptb_runner.launch.inline import is_over
from ptb_runner.launch.states import WAITED_FOR, JobState, Where

type Refresh = Callable[[Path], dict[int, JobState]]
"""Asks how the jobs of a sweep are, and keeps their cells' status true."""


@contextlib.contextmanager
def alone(sweep: Path) -> Iterator[None]:
    """Hold a sweep while its cells are submitted: of two at once, each would give the same cells jobs.

    Raises UsageError when another process submits them.
    """
    from filelock import FileLock, Timeout

    lock = FileLock(sweep / ".submit.lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise UsageError(f"{sweep}: another process submits its cells just now\n  ptb status {sweep}") from None
    try:
        yield
    finally:
        lock.release()


def number(cell: Cell) -> int:
    """A cell's number in its sweep."""
    return int(cell.folder.name)


def due(sweep: Path, cells: list[Cell], before: dict[int, JobState]) -> list[Cell]:
    """The cells that are to be submitted: not over, and no job works for them.

    Raises UsageError when that is not known: nothing may run twice.
    """
    if unknown := next((one for one in before.values() if one.where is Where.unknown), None):
        raise UsageError(
            f"{sweep}: whether its earlier jobs still run is not known: {unknown.reason}\n  try again later"
        )
    busy = {key for key, one in before.items() if one.where in WAITED_FOR}
    return [cell for cell in cells if not is_over(cell) and number(cell) not in busy]


def begin(cell: Cell, **fields: Any) -> None:
    """A fresh launcher.json before a job can write its own, and a status that no longer speaks of the last job."""
    base = {"kind": cell.config.launcher.kind, "job_id": None, "submitted_at": now(), "error": None}
    write_json(cell.folder / "launcher.json", base | fields)
    if (read_json(cell.folder / "status.json") or {}).get("state") in watch.OVER:
        mark(cell, "planned", None)


def settle(folder: Path) -> None:
    """Keep or remove the hand-offs that a lost runner has left: of trials without a result, which run again, none."""
    cell = read_cell(folder)
    for place in sorted(cell.handoff.glob("*")):
        keep = trial_folders.keeps_model(cell, place.name)
        backend.of(cell.config).settle_handoff(cell, place.name, keep)


def attend(sweep: Path, cells: list[Cell], out: Console, wait: Callable[[], Any], cancel: Callable[[], Any]) -> Ended:
    """Show submitted cells until all are over, unless `launcher.wait=false`; Ctrl-C leaves or cancels their jobs."""
    settings = cells[0].config.launcher
    assert isinstance(settings, JobsConfig)
    if not settings.wait:
        return Ended.detached
    with watch.shown(sweep, cells[0].config.progress.interval_sec, out):
        try:
            wait()
        except KeyboardInterrupt:
            if settings.on_interrupt is OnInterrupt.leave:
                return Ended.detached
            cancel()
            return Ended.interrupted
    return Ended.over


def wait(sweep: Path, cells: list[Cell], poll_sec: float, refresh: Refresh) -> dict[int, JobState]:
    """Wait until no job works for any of the cells, and return how they are."""
    numbers = {number(cell) for cell in cells}
    while True:
        mine = {key: one for key, one in refresh(sweep).items() if key in numbers}
        if not any(one.where in WAITED_FOR for one in mine.values()):
            return mine
        time.sleep(poll_sec)


def still_running(sweep: Path, numbers: list[int], timeout_sec: float, refresh: Refresh) -> list[int]:
    """Wait for the end of cancelled cells' jobs, and return those that have not ended in time."""
    deadline = time.monotonic() + timeout_sec
    while True:
        known = refresh(sweep)
        left = [key for key in numbers if known[key].where in WAITED_FOR]
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(0.5)
