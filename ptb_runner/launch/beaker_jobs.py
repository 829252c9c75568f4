"""How the experiments of a sweep are: every job of each, what Beaker says of them, their logs and their results.

Beaker begins a preempted job anew, as another job of the same experiment. The newest one tells how the cell is; an
earlier one that was canceled says nothing about it.
"""

from __future__ import annotations

import datetime
import queue
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ptb_runner.cell import locked, mark, now, read_cell, read_json
from ptb_runner.explain import UsageError
from ptb_runner.launch import beaker_client, beaker_results, beaker_spec, job, submitted
from ptb_runner.launch.beaker_client import Account
from ptb_runner.launch.states import WAITED_FOR, JobState, Where, judged, note
from ptb_runner.terminal import shown

if TYPE_CHECKING:
    from beaker import BeakerJob, BeakerJobLog, BeakerWorkload

_AT_ONCE = 8
_ROWS = 15  # cells of which all is told
_GAP_SEC = 60.0  # within which Beaker begins a job anew after one that was preempted or failed
_POLL_SEC = 2.0
_RUNNING = frozenset({"running", "stopping", "uploading_results"})
_ENDED = frozenset({"succeeded", "failed", "canceled"})
_PREEMPTIONS = frozenset({"system_preemption", "user_preemption", "sibling_task_preemption", "node_unavailable"})


def _account(folder: Path) -> Account:
    """The account that a cell was submitted with."""
    launcher = beaker_spec.settings(read_cell(folder).config)
    return beaker_client.connect(launcher, job.read(folder.parent).get("workspace"))


# --- How they are -------------------------------------------------------------------------------------


def refresh(sweep: Path) -> dict[int, JobState]:
    """Where the experiment of each cell is, by the cell's number; results are brought as far as they can be seen."""
    folders = _submitted(sweep.resolve())
    open_ones = [one for one in folders.values() if not job.read(one).get("fetched_at")]
    known: dict[Path, tuple[Where, str]] = dict.fromkeys(folders.values(), (Where.lost, "its job is over"))
    known |= _look_at_all(open_ones)
    found = {key: judged(folder, job.read(folder), *known[folder]) for key, folder in folders.items()}
    for key, one in found.items():
        _note(folders[key], one)
    return found


def _submitted(sweep: Path) -> dict[int, Path]:
    """The folders of the cells that were submitted to Beaker, by number."""
    found = sorted((int(path.parent.name), path.parent) for path in sweep.glob("[0-9]*/launcher.json"))
    return {number: folder for number, folder in found if job.read(folder).get("kind") == "beaker"}


def _look_at_all(folders: list[Path]) -> dict[Path, tuple[Where, str]]:
    """Where some cells are. A Beaker that does not answer is asked once, and not once a cell."""
    if not folders:
        return {}
    try:
        account = _account(folders[0])
        account.ask(lambda beaker: beaker.user_name)
    except UsageError as error:
        return dict.fromkeys(folders, (Where.unknown, str(error).splitlines()[0]))
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return dict(zip(folders, pool.map(lambda folder: _look(account, folder), folders), strict=True))


def _look(account: Account, folder: Path) -> tuple[Where, str]:
    """Where one cell is, and what is new of its results brought."""
    try:
        where, reason, jobs = _ask(account, folder)
        record = job.read(folder)
        if where is Where.lost and record["job_id"]:
            if not _bring_all(account, folder, jobs):
                reason = f"{reason or 'exit code 0'}, and no results of its job are to be had here"
            job.record(folder, error=reason or None)
        elif where is not Where.lost and (place := beaker_results.mounted(record["results"])):
            beaker_results.from_folder(place, folder, whole=False)
    except UsageError as error:
        return Where.unknown, str(error).splitlines()[0]
    return where, reason


def _ask(account: Account, folder: Path) -> tuple[Where, str, list[BeakerJob]]:
    """Where one cell is and why, and every job of its experiment, oldest first, which launcher.json then has, too."""
    record = job.read(folder)
    if (workload := account.workload(record["job_id"] or record["name"])) is None:
        return Where.lost, "its experiment was deleted" if record["job_id"] else "it was never submitted", []
    jobs = _jobs(account, workload)
    where, reason = _where(account, folder, workload, jobs)
    job.record(
        folder,
        job_id=workload.experiment.id,
        link=account.client.workload.url(workload),
        message=reason,
        attempts=[_attempt(one) for one in jobs],
    )
    return where, reason, jobs


def _jobs(account: Account, workload: BeakerWorkload) -> list[BeakerJob]:
    """The jobs of an experiment's one task, oldest first."""
    task = workload.experiment.tasks[0]
    found = account.ask(lambda beaker: list(beaker.job.list(task=task)))
    return sorted(found, key=lambda one: one.status.created.ToNanoseconds())


def _where(account: Account, folder: Path, workload: BeakerWorkload, jobs: list[BeakerJob]) -> tuple[Where, str]:
    if not jobs:
        return (Where.lost, "canceled before it began") if _state(workload) in _ENDED else (Where.queued, "")
    latest = jobs[-1]
    if not latest.status.HasField("finalized"):
        if _state(latest.status) in _RUNNING:
            return Where.running, ""
        return Where.queued, _scheduling(account, latest)
    if _is_begun_anew(folder, workload, jobs):
        return Where.queued, f"{_why(latest)}; Beaker begins it anew"
    return Where.lost, _why(latest)


def _is_begun_anew(folder: Path, workload: BeakerWorkload, jobs: list[BeakerJob]) -> bool:
    """Whether another job follows the last one, which is over."""
    launcher, latest = beaker_spec.settings(read_cell(folder).config), jobs[-1].status
    preempted = launcher.auto_resume and _cancelled_for(latest) in _PREEMPTIONS
    failures = sum(not one.status.HasField("canceled") and _exit_code(one.status) != 0 for one in jobs)
    retried = not latest.HasField("canceled") and 0 < failures <= launcher.retries and _exit_code(latest) != 0
    if not (preempted or retried) or workload.experiment.HasField("canceled"):
        return False
    ended = time.time() - latest.finalized.ToNanoseconds() / 1e9
    return _state(workload) not in _ENDED or ended < _GAP_SEC


def _state(holder: Any) -> str:
    """Beaker's word for how a job or an experiment is."""
    from beaker import BeakerWorkloadStatus

    try:
        return BeakerWorkloadStatus(holder.status).name
    except ValueError:
        return "submitted"  # not said yet


def _exit_code(status: Any) -> int | None:
    return status.exit_code if status.HasField("exit_code") else None


def _cancelled_for(status: Any) -> str:
    from beaker import BeakerCancelationCode

    if not status.HasField("canceled"):
        return ""
    try:
        return BeakerCancelationCode(status.canceled_code).name
    except ValueError:
        return "canceled"


def _why(one: BeakerJob) -> str:
    """How a job that is over ended, in words; empty when all went well."""
    status = one.status
    said = status.canceled_for or status.message or status.failed_scheduling_message
    parts = [_cancelled_for(status).replace("_", " "), said]
    if (code := _exit_code(status)) or (code is None and not any(parts)):
        parts.append("ended without an exit code" if code is None else f"exit code {code}")
    return ": ".join(filter(None, parts))


def _attempt(one: BeakerJob) -> dict[str, Any]:
    """A job, for launcher.json."""
    status = one.status
    times = {
        name: _time(getattr(status, name))
        for name in ("created", "started", "exited", "finalized")
        if status.HasField(name)
    }
    return {"job": one.id, "state": _state(status), "exit_code": _exit_code(status), "why": _why_ended(one), **times}


def _why_ended(one: BeakerJob) -> str | None:
    return (_why(one) or None) if one.status.HasField("finalized") else None


def _time(stamp: Any) -> str:
    return stamp.ToDatetime(datetime.UTC).isoformat(timespec="seconds")


def _scheduling(account: Account, one: BeakerJob) -> str:
    """What the scheduler last said of a job that waits."""
    events = account.ask(lambda beaker: list(beaker.job.list_summarized_events(one)))
    latest = max(events, key=lambda event: event.latest_occurrence.ToNanoseconds(), default=None)
    return latest.latest_message if latest else one.status.message


def _note(folder: Path, found: JobState) -> None:
    """Write how the cell is to its status, of which nothing may have been seen here since it was submitted."""
    state = (read_json(folder / "status.json") or {}).get("state")
    if found.where is Where.unknown:
        job.record(folder, message=found.reason)
    if found.where is Where.running and state in ("planned", "cancelled", "failed", "lost"):
        said = ("running", None)
    elif found.where is Where.queued and state in ("running", "failed"):
        said = ("planned", found.reason or None)
    else:
        note(folder, found)
        return
    with locked(folder):
        mark(read_cell(folder), *said)


def notes(folder: Path) -> Iterator[str]:
    """What to tell of a sweep beside its cells' states, cell by cell: links, jobs, the scheduler, where results are.

    Of many cells, those are left out whose first job did all that was to be done.
    """
    if not (folder / "sweep.yaml").exists():
        yield from _notes(folder)
        return
    cells = list(_submitted(folder).values())
    calm = {cell for cell in cells if _is_calm(cell)} if len(cells) > _ROWS else set()
    yield f"group: {job.read(folder).get('group_link') or 'none yet'}"
    for cell in cells:
        yield from () if cell in calm else _notes(cell)
    if calm:
        yield f"and {len(calm)} more cells, finished by their first job: ptb status {shown(folder)}/CELL"


def _is_calm(cell: Path) -> bool:
    state = (read_json(cell / "status.json") or {}).get("state")
    return state == "finished" and len(job.read(cell).get("attempts") or []) == 1


def _notes(folder: Path) -> Iterator[str]:
    record = job.read(folder)
    yield f"cell {folder.name}: {record.get('link') or 'not submitted'}"
    for number, one in enumerate(record.get("attempts") or [], 1):
        ended = one["why"] or (f"exit code {one['exit_code']}" if one["exit_code"] is not None else "")
        since = one.get("finalized") or one.get("started") or one.get("created") or ""
        yield f"  attempt {number}: {one['state']}{f' ({ended})' if ended else ''}, {since}, job {one['job']}"
    if record.get("message") and not record.get("fetched_at"):
        yield f"  Beaker says: {record['message']}"
    yield from _whereabouts(record)


def _whereabouts(record: dict[str, Any]) -> Iterator[str]:
    if source := record.get("fetched_from"):
        yield f"  results: brought from {source}"
    elif record.get("fetched_at"):
        seen = f"{record['results']} is not mounted here, and " if record.get("results") else ""
        yield f"  results: none here: {seen}its jobs left no result dataset"
    elif record.get("job_id") and record.get("results") and not beaker_results.mounted(record["results"]):
        yield f"  results: in {record['results']}, not mounted here; brought when its job is over"


# --- Results ------------------------------------------------------------------------------------------


def bring(folder: Path) -> bool:
    """Bring what a cell has written until now, for those who want to look at it; whether more may come."""
    if job.read(folder).get("fetched_at"):
        return False
    where, _ = _look_at_all([folder])[folder]
    if where is Where.lost:
        refresh(folder.parent)
    return where in WAITED_FOR


def _bring_all(account: Account, folder: Path, jobs: list[BeakerJob]) -> bool:
    """Bring the results of a cell whose jobs are over; False: none are to be had. What was left half-done goes."""
    record = job.read(folder)
    if place := beaker_results.mounted(record.get("results")):
        beaker_results.from_folder(place, folder, whole=True)
        source: str | None = str(place)
    else:
        dataset = beaker_results.from_datasets(account, reversed(jobs), folder)
        source = dataset and f"Beaker's dataset {dataset}"
    job.record(folder, fetched_from=source, fetched_at=now())
    submitted.settle(folder)
    return source is not None


def cancel(folders: list[Path]) -> None:
    """Cancel cells' experiments; their jobs are told to stop, and ended after Beaker's grace."""
    account = _account(folders[0])
    asked = (account.workload(record["job_id"] or record["name"]) for record in map(job.read, folders))
    if workloads := [one for one in asked if one]:
        account.insist(lambda beaker: list(beaker.workload.cancel(*workloads)))


# --- Logs ---------------------------------------------------------------------------------------------


def logs(folder: Path, *, follow: bool, show: Callable[[str], None] = print) -> None:
    """Show what all jobs of a cell have printed, each line once; with `follow` until none follows."""
    account, number, told = _account(folder), 0, ""
    while True:
        where, reason, jobs = _ask(account, folder)
        begun = [one for one in jobs if one.status.HasField("started") or one.status.HasField("finalized")]
        for one in begun[number:]:
            number += 1
            show(f"==> attempt {number}: job {one.id} <==")
            for line in _lines(account, one, follow=follow):
                show(line)
        if not follow or (where is Where.lost and number >= len(jobs)):
            if not number:
                print(f"no job has begun yet{f': {reason}' if reason else ''}", file=sys.stderr)
            return
        if where is Where.queued and reason not in ("", told):
            told = reason
            print(f"queued: {reason}", file=sys.stderr)
        time.sleep(_POLL_SEC)


def _lines(account: Account, one: BeakerJob, *, follow: bool) -> Iterator[str]:
    """A job's log. Its stream may be broken off and begin again earlier: what was seen is passed over by its time."""
    last, at_last = -1, set[bytes]()
    for entry in _stream(account, one, follow):
        at = entry.timestamp.ToNanoseconds()
        if at < last or (at == last and entry.message in at_last):
            continue
        at_last = at_last | {entry.message} if at == last else {entry.message}
        last = at
        yield entry.message.decode(errors="replace").rstrip("\r\n")


def _stream(account: Account, one: BeakerJob, follow: bool) -> Iterator[BeakerJobLog]:
    """The entries of a job's log as they come; the client would wait for ever for a Beaker that is gone."""
    entries: queue.SimpleQueue[BeakerJobLog | BaseException | None] = queue.SimpleQueue()

    def work() -> None:
        try:
            for entry in account.client.job.logs(one, follow=follow):
                entries.put(entry)
            entries.put(None)
        except BaseException as error:
            entries.put(error)

    threading.Thread(target=work, daemon=True).start()
    while True:
        try:
            entry = entries.get(timeout=account.answer_sec)
        except queue.Empty:
            account.ask(lambda beaker: beaker.job.get(one.id))  # raises when Beaker is gone
            continue
        if entry is None:
            return
        if isinstance(entry, BaseException):
            raise account.worded(entry) from entry
        yield entry
