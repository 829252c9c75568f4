"""What a Beaker job runs, after templates/beaker/entry.sh: one cell, with podman in the job.

The cell is unpacked as it was submitted, and over that what an earlier attempt had saved; the job is made ready for
containers; a process of its own runs the cell, and serves its model. What that writes is copied to the results' folder
all the while and at the end, whatever happened, and finally to where Beaker looks for results.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

from ptb_runner import watch
from ptb_runner.cell import Cell, mark, read_cell, read_json
from ptb_runner.config import BeakerLauncherConfig
from ptb_runner.explain import Exit, UsageError
from ptb_runner.launch import away, beaker_setup, job
from ptb_runner.launch.copies import LOCKS, Copy, begin
from ptb_runner.launch.inline import is_over
from ptb_runner.redact import Redactor
from ptb_runner.results.collect import collect
from ptb_runner.single import exit_of

log = logging.getLogger("ptb_runner.launch.beaker_job")  # which runs as a program

CELL, RESULTS = Path("/ptb/cell/cell.tar"), Path("/results")
_LINES_SEC = 0.5


class Stopped(BaseException):
    """The job is preempted or cancelled."""


def main() -> int:
    """Run what is missing of the job's cell, and return the exit code that the same run would have at home."""
    folder, results = away.WORK / os.environ["PTB_CELL"], Path(os.environ["PTB_RESULTS"])
    names = filter(None, os.environ.get("PTB_SECRETS", "").split(","))
    clean = Redactor({name: os.environ[name] for name in names if name in os.environ})
    try:
        away.unpack(CELL, results / "cell", folder)
        cell = read_cell(folder)
    except (UsageError, OSError) as error:
        print(f"the cell that was submitted cannot be unpacked: {error}\n  submit it again: ptb resume DIR")
        return Exit.unscored
    # All of it: what is there can be read like a cell's folder at home.
    copy = Copy(folder, results / "cell", LOCKS, clean)
    if is_over(cell):
        print("the cell is over: nothing is left to do")
        return _finish(copy, exit_of(folder))
    with _log_printed(folder, clean):
        code = _work(cell, copy, clean)
    return _finish(copy, code)


def _work(cell: Cell, copy: Copy, clean: Redactor) -> Exit:
    """Make the job ready and run the cell in it, saving as it goes."""
    signal.signal(signal.SIGTERM, _stop)
    try:
        if faults := begin(copy):
            raise UsageError(f"results cannot be saved: {faults[0]}\n  look at launcher.results_dir")
        if copy.target.parent != RESULTS:
            away.bring_states(copy.target.parent.parent, cell.folder)
        _run(cell, copy, clean)
    except Stopped:
        log.info("the job was told to end: what is finished is saved")
        return Exit.interrupted
    except (UsageError, OSError) as error:
        reason = clean.text(str(error))
        log.error("%s", reason)
        mark(cell, "failed", reason)
        return Exit.unscored
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # what is left is short, and is not to be broken off
    return exit_of(cell.folder)


def _run(cell: Cell, copy: Copy, clean: Redactor) -> None:
    launcher = cell.config.launcher
    assert isinstance(launcher, BeakerLauncherConfig)
    with beaker_setup.ready(cell):
        code = away.run(cell.folder, copy.update, launcher.sync_sec, clean)
    if code:
        status = read_json(cell.folder / "status.json") or {}
        reason = status.get("error") if status.get("state") == "failed" else None
        raise UsageError(reason or f"the runner ended with exit code {code}\n  the lines before this one say why")
    log.info("%s", collect(cell.folder).headline)


def _stop(*_: Any) -> NoReturn:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise Stopped


def _finish(copy: Copy, code: Exit) -> int:
    """Save the cell for the last time, where attempts to come and where Beaker looks."""
    faults = copy.update() and copy.update()
    if RESULTS.is_dir() and copy.target.parent != RESULTS:
        faults += Copy(copy.source, RESULTS / "cell", LOCKS, copy.clean).update()
    if faults:
        print(f"{len(faults)} files could not be copied, such as {faults[0]}\n  is there room in launcher.results_dir?")
        return code or Exit.unscored
    return code


@contextlib.contextmanager
def _log_printed(folder: Path, clean: Redactor) -> Iterator[None]:
    """Print runner.log as it grows, without secrets: it is what Beaker shows as the job's log."""
    file = folder / "runner.log"
    begun = file.stat().st_size if file.exists() else 0
    job.log_to(folder)
    clean.log_files()

    def follow(over: threading.Event) -> None:
        with file.open(errors="replace") as lines:
            lines.seek(begun)
            rest, last = "", False
            while not last:
                last = over.wait(_LINES_SEC)
                *whole, rest = (rest + lines.read()).split("\n")
                for line in [*whole, *([rest] if last and rest else [])]:
                    print(clean.text(line), flush=True)

    with watch.meanwhile(follow):
        yield


if __name__ == "__main__":
    sys.exit(main())
