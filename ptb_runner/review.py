"""A person's word on trials that a judge wants looked at: with name and time, and for the verdicts as they were."""

from __future__ import annotations

from typing import Any

from ptb_runner import cell as cells
from ptb_runner.cell import Cell, now, read_json, write_json
from ptb_runner.explain import UsageError
from ptb_runner.judge import judgements
from ptb_runner.result import rescore


def open_cases(result: dict[str, Any]) -> list[dict[str, Any]]:
    """The trials of a result that some judge asks a person about, reviewed or not."""
    return [trial for trial in result["trials"] if trial.get("review")]


def review(cell: Cell, trial: str | None, decision: str, note: str, by: str) -> dict[str, Any]:
    """Accept or reject what a judge asks about in a cell, or in one of its trials, and return the new result.

    A rejected trial counts as flagged. A decision on a cell is about the trials that wait; one that was taken is taken
    again only for a trial by its name. Raises UsageError when there is nothing to decide.
    """
    with cells.locked(cell.folder):
        cases = open_cases(rescore(cell))
        if trial:
            cases = [one for one in cases if one["name"] == trial]
        if not cases:
            raise UsageError(f"{cell.folder}{f': {trial}' if trial else ''}: no judge asks for a review here")
        waiting = cases if trial else [one for one in cases if one["review"]["state"] == "awaiting"]
        if not waiting:
            names = ", ".join(one["name"] for one in cases)
            raise UsageError(
                f"{cell.folder}: all is decided, of {names}\n  to decide anew, name a trial, as 0/{cases[0]['name']}"
            )
        trials = {one["name"]: judgements.seen_of(judgements.read(cell.job / one["name"])) for one in waiting}
        path = cell.folder / judgements.REVIEWS
        before = read_json(path) if path.exists() else []
        if not isinstance(before, list):
            raise UsageError(f"{path}: is damaged\n  mend it, or move it away: earlier reviews are in it")
        entry = {"decision": decision, "note": note, "by": by, "at": now(), "trials": trials}
        write_json(path, [*before, entry])
        return rescore(cell)
