"""What runs inside a job: one cell. It bears being run twice at once, requeued, and ended by a time limit.

`launcher.json` in the cell's folder says which job works for it. The process that submits and the job itself both
write it, each its own fields, under a lock; run.py's status.json is another file, so that they never meet.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import FileLock

from ptb_runner import limits, redact
from ptb_runner.cell import Busy, mark, now, read_cell, read_json, write_json
from ptb_runner.explain import UsageError
from ptb_runner.run import run_cell

if TYPE_CHECKING:
    from submitit.core.utils import DelayedSubmission

log = logging.getLogger(__name__)

OUT_OF_TIME = signal.SIGUSR2  # what submitit has Slurm send before a time limit, or at preemption
_AGAIN_SEC = 0.1


def read(folder: Path) -> dict[str, Any]:
    """The cell's launcher.json; {} when there is none."""
    return read_json(folder / "launcher.json") or {}


def record(folder: Path, **fields: Any) -> None:
    """Set fields of the cell's launcher.json, and leave the others."""
    with FileLock(folder / ".launcher.lock"):
        write_json(folder / "launcher.json", read(folder) | fields)


@dataclass(frozen=True)
class CellJob:
    """The function that submitit pickles: runs the cell in `folder`, and is requeued at most `max_requeues` times."""

    folder: Path
    max_requeues: int = 0

    def __call__(self) -> None:
        """Run what is missing of the cell; when time runs out, stop its trials cleanly and then requeue the job."""
        if read(self.folder).get("cancelled_at"):
            return
        try:
            self._work()
        finally:
            self._redact_logs()

    def _work(self) -> None:
        log_to(self.folder)
        record(self.folder, started_at=now(), host=socket.gethostname(), **_job_id())
        requeue = signal.getsignal(OUT_OF_TIME)  # submitit's own handler; this process runs under it
        with _passing_on_signals() as received:
            try:
                if not received:
                    self._run()
            except Busy:
                log.info("another runner has the cell: nothing to do here")
                return
            except Exception as error:
                self._fail(str(error) if isinstance(error, UsageError) else f"{type(error).__name__}: {error}")
                raise
        state = (read_json(self.folder / "status.json") or {}).get("state")
        if OUT_OF_TIME in received and state != "finished" and callable(requeue):
            self._requeue(requeue)

    def _run(self) -> None:
        cell = read_cell(self.folder)
        in_sweep = (self.folder.parent / "sweep.yaml").exists()
        if in_sweep and (reason := limits.reason_not_to_start(self.folder.parent, cell.config)):
            mark(cell, "skipped", reason)
            return
        run_cell(self.folder)

    def _redact_logs(self) -> None:
        """What an agent prints on the host's side goes to submitit's files: keep its secrets out of them too."""
        from submitit import JobEnvironment

        sys.stdout.flush()
        sys.stderr.flush()
        # No files (not started by submitit), or no cell any more: then there is nothing to keep out, or nobody's.
        with contextlib.suppress(UsageError, OSError, RuntimeError):
            secrets = redact.redactor(read_cell(self.folder))
            paths = JobEnvironment().paths
            for path in (paths.stdout, paths.stderr):
                secrets.overwrite(path)

    def _requeue(self, requeue: Any) -> None:
        """Have submitit call `checkpoint` and put the job back into the queue; ends this process."""
        with contextlib.suppress(UsageError):
            mark(read_cell(self.folder), "planned", "stopped in time, to be carried on with by the same job")
        try:
            requeue(OUT_OF_TIME, None)
        except Exception as error:
            if not read(self.folder).get("error"):
                self._fail(f"the job could not be requeued: {error}")
            raise

    def checkpoint(self) -> DelayedSubmission | None:
        """What submitit runs after a requeue: the same again, run_cell skips what is there. None: no more requeues."""
        from submitit.core.utils import DelayedSubmission

        so_far = read(self.folder).get("requeues", 0)
        if so_far >= self.max_requeues:
            self._fail(
                f"its time ran out and it had been requeued {so_far} times already\n"
                "  raise launcher.time_hours or launcher.max_requeues, and resume"
            )
            return None
        record(self.folder, requeues=so_far + 1)
        return DelayedSubmission(self)

    def _fail(self, reason: str) -> None:
        log.error("%s", reason)
        record(self.folder, error=reason)
        with contextlib.suppress(UsageError):  # a folder that cannot be read: launcher.json has the reason
            mark(read_cell(self.folder), "failed", reason)


def _job_id() -> dict[str, str]:
    """Our own id: the submitting process may have been killed before it could write it down."""
    array, task = os.environ.get("SLURM_ARRAY_JOB_ID"), os.environ.get("SLURM_ARRAY_TASK_ID")
    found = f"{array}_{task}" if array else os.environ.get("SLURM_JOB_ID")
    local = os.environ.get("SUBMITIT_EXECUTOR") == "local"  # it may have been started from within a Slurm job
    return {"job_id": found} if found and not local else {}


@contextlib.contextmanager
def _passing_on_signals() -> Iterator[set[int]]:
    """Pass SIGTERM and "out of time" on to run_cell, and collect what came.

    submitit's handlers would ignore SIGTERM, and requeue from within the handler while trials still run. Here both
    come to run_cell as SIGTERM, for which it stops its trials, cleans up and returns; submitit's handler is called
    after that. run_cell listens only while its event loop runs: a signal that comes earlier is repeated until then.
    """
    received: set[int] = set()

    def pass_on(number: int, frame: Any) -> None:
        if number != signal.SIGALRM:
            received.add(number)
        if signal.getsignal(signal.SIGTERM) in (pass_on, signal.SIG_DFL):
            signal.setitimer(signal.ITIMER_REAL, _AGAIN_SEC)
        else:
            os.kill(os.getpid(), signal.SIGTERM)

    numbers = (signal.SIGTERM, OUT_OF_TIME, signal.SIGALRM)
    before = [signal.signal(number, pass_on) for number in numbers]
    try:
        yield received
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


def log_to(folder: Path) -> None:
    """Write this process's log to the cell's runner.log."""
    handler = logging.FileHandler(folder / "runner.log")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
