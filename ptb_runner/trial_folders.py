"""The trials in a cell's folder: which are over, which make room for another try, and what becomes of their models.

Nothing is deleted: a try that does not count is kept under superseded/.
"""

from __future__ import annotations

import asyncio
import logging
import traceback
from pathlib import Path
from typing import Any

from ptb_runner import backend, redact
from ptb_runner import cell as cells
from ptb_runner.cell import Cell, read_json, write_json
from ptb_runner.config import KeepModel, Kind
from ptb_runner.judge import judgements
from ptb_runner.outcome import JUDGED, SCORED, Outcome, trial_record
from ptb_runner.redact import Redactor

log = logging.getLogger(__name__)

# What a trial may seem to have ended with when it died of a signal.
BY_SIGNAL = (Outcome.infra_error, Outcome.eval_failed)


def read(cell: Cell, name: str) -> dict[str, Any]:
    return trial_record(cell.job / name, attempt(name))


def finished(cell: Cell, name: str) -> dict[str, Any] | None:
    """The record of a trial that need not run again; None when it is missing or was interrupted."""
    folder = cell.job / name
    if read_json(folder / "result.json") is None:
        return None
    record = read(cell, name)
    return None if record["outcome"] == Outcome.cancelled else record


def judges_missing(cell: Cell, record: dict[str, Any]) -> list[str]:
    """Which of the cell's judges have still to judge a trial that is over."""
    unjudged = (Outcome.judge_missing, Outcome.flagged)  # what the verifier had said of them counts
    if record["outcome"] not in (*JUDGED, *unjudged):
        return []
    return judgements.missing(cell.job / record["name"], cell.config.judge.panel)


def attempt(name: str) -> int:
    return int(name.rpartition("__")[2])


def record_failure(trial_dir: Path, error: BaseException) -> None:
    """Leave the reason where `trial_record` finds it, for a trial that Harbor could not begin or did not see fail."""
    path = trial_dir / "result.json"
    found = read_json(path)
    result: dict[str, Any] = found if isinstance(found, dict) else {"trial_name": trial_dir.name}
    if result.get("exception_info"):
        return
    result["exception_info"] = {
        "exception_type": type(error).__name__,
        "exception_message": str(error) or repr(error),
        "exception_traceback": "".join(traceback.format_exception(error)),
        "occurred_at": cells.now(),
    }
    trial_dir.mkdir(parents=True, exist_ok=True)
    write_json(path, result)


def superseded(cell: Cell, name: str) -> Path:
    """Where the next folder of a trial goes in superseded/: its name with a number."""
    taken = [int(path.suffix[1:]) for path in cell.superseded.glob(f"{name}.*") if path.suffix[1:].isdecimal()]
    return cell.superseded / f"{name}.{max(taken, default=0) + 1}"


def supersede(cell: Cell, folder: Path) -> None:
    """Move a trial's folder to superseded/."""
    cell.superseded.mkdir(exist_ok=True)
    folder.rename(superseded(cell, folder.name))


def end_regrades(cell: Cell) -> None:
    """Clear regrading/ of what a `ptb regrade` that was interrupted or killed left there.

    A trial's result stays, unless it had just been moved away for the new one: that one is whole then.
    """
    for folder in sorted(cell.regrading.glob("*__*")):
        redact.redactor(cell).folder(folder)
        if (cell.job / folder.name).exists():
            supersede(cell, folder)
        else:
            folder.rename(cell.job / folder.name)
    if cell.regrading.is_dir():
        cell.regrading.rmdir()


def set_aside(cell: Cell, name: str) -> None:
    """Keep an earlier try of a trial under superseded/, and clear its place."""
    supersede(cell, cell.job / name)
    backend.of(cell.config).settle_handoff(cell, name, keep=False)


def set_aside_outcomes(cell: Cell, outcomes: list[str]) -> None:
    """Clear the place of every trial that ended in one of `outcomes`, so that the next run does it again."""
    cells.check_unchanged(cell)
    chosen = []
    for folder in sorted(cell.job.glob("*__*")):
        record = finished(cell, folder.name)
        if record and record["outcome"] in outcomes:
            set_aside(cell, folder.name)
            chosen.append(folder.name)
    if chosen:
        cells.mark(cell, "planned", None, fewer=len(chosen))


def set_aside_unfinished(cell: Cell, secrets: Redactor) -> None:
    """Move away what an interrupted or killed runner left half done."""
    for folder in sorted(cell.job.glob("*__*")):
        if folder.is_dir() and finished(cell, folder.name) is None:
            secrets.folder(folder)
            set_aside(cell, folder.name)


def set_aside_killed(cell: Cell, cancelled: list[str]) -> None:
    """Clear the place of trials that were cancelled, but by then had failed: of the signal itself.

    Slurm sends it to every process of a job, a terminal to every one in front: a sandbox may die of it before we
    hear of it ourselves, and Harbor files that as the trial's error.
    """
    for name in cancelled:
        record = finished(cell, name)
        if record and record["outcome"] in BY_SIGNAL:
            set_aside(cell, name)


async def settle_handoffs(cell: Cell, names: list[str], trials: list[dict[str, Any]]) -> None:
    """Keep or remove what is still unsettled: hand-offs of trials that were interrupted, or that another run left."""
    records = {trial["name"]: trial for trial in trials}
    await asyncio.gather(*(settle_handoff(cell, name, records.get(name)) for name in names))
    for folder in (*cell.handoff.glob("*"), cell.handoff):
        if folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()


async def settle_handoff(cell: Cell, name: str, record: dict[str, Any] | None) -> None:
    """Keep or remove a trial's hand-off by the policy, now that its result is safe."""
    if cell.config.benchmark.kind is not Kind.post_train:
        return
    keep = record is not None and _is_kept(record, cell.config.backend.keep_model)
    try:
        await asyncio.to_thread(backend.of(cell.config).settle_handoff, cell, name, keep)
    except Exception:
        log.exception("the hand-off of %s could be neither kept nor removed", name)


def keeps_model(cell: Cell, name: str) -> bool:
    """Whether the model of a trial is to be kept; that of one without a result is not, since it will run again."""
    record = finished(cell, name)
    return record is not None and _is_kept(record, cell.config.backend.keep_model)


def _is_kept(record: dict[str, Any], policy: KeepModel) -> bool:
    """Whether a model stays. That of a verification that failed always does: it can be scored again."""
    outcome = record["outcome"]
    if outcome == Outcome.cancelled:
        return False  # the trial will be run again
    unverified = outcome == Outcome.infra_error and record["error"]["phase"] == "verifier"
    if policy is KeepModel.always or unverified or outcome == Outcome.eval_failed:
        return True
    verified = (*SCORED, Outcome.flagged, Outcome.judge_missing)  # judges may change their minds
    return policy is KeepModel.scored and outcome in verified
