"""Where the jobs of cells are, in the words of all launchers whose cells outlive the process that started them."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from ptb_runner import watch
from ptb_runner.cell import locked, mark, read_cell, read_json
from ptb_runner.explain import UsageError


class Where(StrEnum):
    """Where a cell's job is."""

    queued = "queued"
    running = "running"
    over = "over"  # the cell's own status tells how: finished, failed or skipped
    cancelled = "cancelled"
    lost = "lost"  # gone, though the cell is not over
    unknown = "unknown"  # the cluster does not answer, not yet for long


WAITED_FOR = frozenset({Where.queued, Where.running, Where.unknown})


@dataclass(frozen=True)
class JobState:
    """A cell's job: where it is, its id (None: not known), and why, in words for people."""

    where: Where
    job_id: str | None
    reason: str = ""


def judged(folder: Path, record: dict[str, Any], where: Where, reason: str) -> JobState:
    """A job that is gone is over, cancelled or lost: the cell's own files tell which."""
    job_id = record.get("job_id")
    if where is not Where.lost:
        return JobState(where, job_id, reason)
    status = read_json(folder / "status.json") or {}
    state = status.get("state")
    if state in ("cancelled", "lost"):
        return JobState(Where(state), job_id, status.get("error") or reason)
    if state in watch.OVER:
        return JobState(Where.over, job_id)
    if record.get("cancelled_at"):
        return JobState(Where.cancelled, job_id, "cancelled")
    return JobState(Where.lost, job_id, record.get("error") or reason)


def note(folder: Path, found: JobState) -> None:
    """Write what became of a job to its cell's status.

    Lost or cancelled cells would otherwise look as if they still ran, and requeued ones as if they were over.
    """
    state = (read_json(folder / "status.json") or {}).get("state")
    said = None
    if found.where in (Where.lost, Where.cancelled) and state not in watch.OVER:
        said = (str(found.where), found.reason)
    elif found.where is Where.queued and state in ("cancelled", "lost"):
        said = ("planned", f"job {found.job_id} is queued again")
    if said:
        with contextlib.suppress(UsageError), locked(folder):  # not while a runner writes it
            mark(read_cell(folder), *said)
