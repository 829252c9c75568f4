"""Cells in background processes on this machine: a process that outlives the terminal and feeds submitit.

submitit's local executor starts all that it is given at once, in the terminal's own session. So it is called from
here: one process of its own session, which starts a cell whenever fewer than `max_cells` run. It holds a lock for
its life, by which others know that it lives; each cell's runner holds the cell's lock likewise.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from ptb_runner.cell import is_held, now, read_json
from ptb_runner.launch import job

_FOREVER_MIN = 10 * 365 * 24 * 60  # submitit wants a time limit
_POLL_SEC = 0.1


def start(sweep: Path, numbers: list[int], max_cells: int, environment: dict[str, str]) -> str:
    """Start the pool for these cells and return its id: the name of its lock below .submitit/."""
    place = sweep / ".submitit"
    place.mkdir(exist_ok=True)
    name = f"pool-{time.time_ns()}"
    lock = os.open(place / f"{name}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        # Taken here and inherited, so that there is no moment at which the pool seems to be dead.
        fcntl.flock(lock, fcntl.LOCK_EX)
        with (place / f"{name}.log").open("ab") as output:
            subprocess.Popen(
                [sys.executable, "-m", "ptb_runner.launch.pool", str(sweep), str(max_cells), json.dumps(numbers)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={**os.environ, **environment},
                pass_fds=[lock],
                start_new_session=True,  # neither Ctrl-C nor the end of the terminal reaches it
            )
    finally:
        os.close(lock)
    return name


def is_alive(sweep: Path, name: str) -> bool:
    """Whether that pool still runs."""
    try:
        lock = os.open(sweep / ".submitit" / f"{name}.lock", os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(lock)
    return False


def stop(folder: Path, number: int = signal.SIGTERM) -> None:
    """Send a signal to the process that runs the cell, if any; at SIGTERM it takes its sandboxes with it."""
    if is_held(folder):  # then the process that status.json names is alive, and nobody else's
        runner = (read_json(folder / "status.json") or {}).get("launcher", {})
        with contextlib.suppress(ProcessLookupError):
            os.kill(runner["pid"], number)


def run(sweep: Path, numbers: list[int], max_cells: int) -> None:
    """Run the cells, `max_cells` at a time; whatever becomes of one of them, the next one starts."""
    from submitit import LocalExecutor, LocalJob

    executor = LocalExecutor(folder=sweep / ".submitit")
    executor.update_parameters(timeout_min=_FOREVER_MIN)
    running: dict[Path, LocalJob[None]] = {}

    def wait_until_fewer_than(count: int) -> None:
        while len(running) >= count:
            time.sleep(_POLL_SEC)
            for folder in [folder for folder, one in running.items() if one.done()]:
                job.record(folder, ended_at=now())
                del running[folder]

    for number in numbers:
        wait_until_fewer_than(max_cells)
        folder = sweep / str(number)
        if not job.read(folder).get("cancelled_at"):
            running[folder] = executor.submit(job.CellJob(folder))  # type: ignore[assignment]
            job.record(folder, job_id=running[folder].job_id)
    wait_until_fewer_than(1)


if __name__ == "__main__":
    run(Path(sys.argv[1]), json.loads(sys.argv[3]), int(sys.argv[2]))
