"""Cells in jobs of their own, through submitit: Slurm array tasks, or background processes on this machine.

Nothing here is needed for the jobs to run: any process that sees the sweep's folder can ask how they are, wait for
them or cancel them.
"""

from __future__ import annotations

import socket
import time
from pathlib import Path
from typing import Any

from rich.console import Console

from ptb_runner.cell import Cell, is_held, now
from ptb_runner.config import Config, LauncherConfig, SlurmConfig, SubmititLocalConfig
from ptb_runner.launch import Ended, frozen, job, pool, slurm, submitted
from ptb_runner.launch.states import WAITED_FOR, JobState, Where, judged, note

# A cluster that has not answered for so long is taken to have lost the jobs.
SILENCE_SEC = 600.0
_LOCAL_POLL_SEC = 0.5


def launch(sweep: Path, cells: list[Cell], out: Console) -> Ended:
    """Submit what is not over, and wait for it unless `launcher.wait=false`; Ctrl-C leaves or cancels the jobs."""
    settings = cells[0].config.launcher
    assert isinstance(settings, SlurmConfig | SubmititLocalConfig)
    poll_sec = settings.poll_sec if isinstance(settings, SlurmConfig) else _LOCAL_POLL_SEC
    numbers = [submitted.number(cell) for cell in cells]
    with submitted.alone(sweep):
        submit(sweep, cells)
    return submitted.attend(sweep, cells, out, lambda: wait(sweep, cells, poll_sec), lambda: cancel(sweep, numbers))


def problems(settings: LauncherConfig, cells: list[Config]) -> list[str]:
    """What would keep the cells from running with this launcher, a text of one or two lines each."""
    return slurm.problems(settings, cells) if isinstance(settings, SlurmConfig) else []


# --- Submission ---------------------------------------------------------------------------------------


def submit(sweep: Path, cells: list[Cell]) -> None:
    """Give every cell that is not over, and has no job that works for it, a new job.

    Raises UsageError when the cluster refuses; what it had taken until then runs.
    """
    sweep = sweep.resolve()
    due = submitted.due(sweep, cells, states(sweep))
    if not due:
        return
    settings = due[0].config.launcher
    code = frozen.freeze(sweep, [cell.config for cell in due])
    for cell in due:
        _begin(cell, code)
    if isinstance(settings, SubmititLocalConfig):
        name = pool.start(sweep, [submitted.number(cell) for cell in due], settings.max_cells, frozen.environment(code))
        for cell in due:
            job.record(cell.folder, pool=name)
        return
    assert isinstance(settings, SlurmConfig)
    folders = [sweep / cell.folder.name for cell in due]
    for folder, job_id in slurm.submit(sweep, folders, settings, frozen.environment(code)):
        job.record(folder, job_id=job_id, array=job_id.partition("_")[0])


def _begin(cell: Cell, code: Path) -> None:
    submitted.begin(
        cell,
        cluster="slurm" if cell.config.launcher.kind == "slurm" else "local",
        array=None,
        submitted_from=socket.gethostname(),
        code=f"{code.parent.name}/{code.name}",
        requeues=0,
    )


# --- How they are -------------------------------------------------------------------------------------


def states(sweep: Path) -> dict[int, JobState]:
    """Where the job of each cell is, by the cell's number; cells that were never submitted are not in it.

    Asks the cluster once, and returns within some client timeouts whether it answers or not.
    """
    files = {int(path.parent.name): job.read(path.parent) for path in sweep.glob("[0-9]*/launcher.json")}
    records = {number: one for number, one in files.items() if one.get("kind") in ("slurm", "submitit_local")}
    on_slurm = {number: one for number, one in records.items() if one["kind"] == "slurm"}
    # First the jobs, then the cells' own status: a job that ends in between has written it.
    known = {number: _local(sweep / str(number), one) for number, one in records.items() if number not in on_slurm}
    known |= _slurm(sweep, on_slurm) if on_slurm else {}
    found = {number: judged(sweep / str(number), records[number], *known[number]) for number in sorted(records)}
    return _with_accounts(found)


def _local(folder: Path, record: dict[str, Any]) -> tuple[Where, str]:
    if record.get("submitted_from") != socket.gethostname():
        return Where.unknown, f"runs on {record.get('submitted_from')}: ask there"
    if is_held(folder):
        return Where.running, ""
    if not record.get("ended_at") and pool.is_alive(folder.parent, record.get("pool") or ""):
        if record.get("job_id"):
            return Where.running, ""
        if not record.get("cancelled_at"):  # else the pool passes it over
            return Where.queued, ""
    return Where.lost, "its process is gone"


def _slurm(sweep: Path, records: dict[int, dict[str, Any]]) -> dict[int, tuple[Where, str]]:
    listed = slurm.jobs()
    if listed is None:
        silent = _silence(sweep)
        where = Where.unknown if silent < SILENCE_SEC else Where.lost
        return dict.fromkeys(records, (where, f"no Slurm controller has answered for {silent:.0f} s"))
    (sweep / ".submitit" / "silent").unlink(missing_ok=True)
    return {number: _listed(listed, record.get("job_id")) for number, record in records.items()}


def _silence(sweep: Path) -> float:
    """Seconds since the cluster was first found not to answer."""
    mark = sweep / ".submitit" / "silent"
    if not mark.exists():
        mark.parent.mkdir(exist_ok=True)
        mark.touch()
    return max(0.0, time.time() - mark.stat().st_mtime)


def _listed(listed: dict[str, tuple[str, str]], job_id: str | None) -> tuple[Where, str]:
    if job_id is None:
        return Where.lost, "it was never submitted"
    word, reason = listed.get(job_id, ("", ""))
    if word in slurm.ACTIVE:
        return Where(slurm.ACTIVE[word]), reason if reason != "None" else ""
    return Where.lost, f"job {job_id} is gone: {word}" if word else f"job {job_id} is gone"


def _with_accounts(found: dict[int, JobState]) -> dict[int, JobState]:
    """For jobs that the controller has forgotten, how accounting says they ended."""
    gone = {one.job_id for one in found.values() if one.reason == f"job {one.job_id} is gone"}
    if not gone:
        return found
    ended = slurm.accounted(sorted(filter(None, gone)))
    return {
        number: JobState(one.where, one.job_id, f"{one.reason}: {ended[one.job_id]}")
        if one.job_id in gone and one.job_id in ended
        else one
        for number, one in found.items()
    }


def refresh(sweep: Path) -> dict[int, JobState]:
    """The same, and write what became of jobs to their cells' status."""
    found = states(sweep)
    for number, one in found.items():
        note(sweep / str(number), one)
    return found


# --- Waiting and cancelling ---------------------------------------------------------------------------


def wait(sweep: Path, cells: list[Cell], poll_sec: float) -> dict[int, JobState]:
    """Wait until no job works for any of the cells, and return how they are; status.json is kept true meanwhile."""
    return submitted.wait(sweep, cells, poll_sec, refresh)


def cancel(sweep: Path, numbers: list[int] | None = None, timeout_sec: float = 60.0) -> list[int]:
    """Cancel the jobs of these cells (None: of all), wait until they are gone, and return those that are not.

    The running ones stop their trials and remove their sandboxes first.
    """
    sweep = sweep.resolve()
    chosen = {
        number: one
        for number, one in states(sweep).items()
        if one.where in WAITED_FOR and (numbers is None or number in numbers)
    }
    for number in chosen:
        job.record(sweep / str(number), cancelled_at=now())
    records = {number: job.read(sweep / str(number)) for number in chosen}
    slurm.cancel([one["job_id"] for one in records.values() if one["kind"] == "slurm" and one["job_id"]])
    local = [sweep / str(number) for number, one in records.items() if one["kind"] != "slurm"]
    deadline = time.monotonic() + timeout_sec
    left = list(chosen)
    while left and time.monotonic() < deadline:
        for folder in local:
            pool.stop(folder)
        time.sleep(_LOCAL_POLL_SEC)
        known = refresh(sweep)
        left = [number for number in left if known[number].where in WAITED_FOR]
    return left
