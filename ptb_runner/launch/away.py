"""A cell on a machine that nobody else sees: run by a process of its own, its folder copied as it goes.

The process (this module as a program) can be ended like any other runner: by SIGTERM, at which it stops its trials and
removes its sandboxes. The machine may be taken away at any time; what runs the cell next carries on with the copy.
"""

from __future__ import annotations

import contextlib
import math
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ptb_runner.cell import mark, read_cell, read_json
from ptb_runner.explain import UsageError
from ptb_runner.launch import job
from ptb_runner.launch.copies import NOT_COPIED
from ptb_runner.redact import Redactor

WORK = Path("/var/tmp/ptb-sweep")
"""The sweep's folder there: its cells are below it, like at home."""
_TRIALS = ("job", "superseded", "regrading")  # between which an earlier runner may have moved some
STOP_SEC = 60.0  # how long the runner may take to stop its trials


def unpack(archive: Path, saved: Path, folder: Path) -> None:
    """The cell as it was submitted, and over that what an earlier runner had saved."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    with tarfile.open(archive) as packed:
        packed.extractall(folder, filter="tar")
    (folder / "sweep.yaml").replace(folder.parent / "sweep.yaml")
    if not saved.is_dir():
        return

    def not_wanted(where: str, names: list[str]) -> list[str]:
        here = NOT_COPIED if where == str(saved) else ()
        return [name for name in names if name in here or name.endswith(".tmp")]

    for name in _TRIALS:
        shutil.rmtree(folder / name, ignore_errors=True)
    shutil.copytree(saved, folder, symlinks=True, dirs_exist_ok=True, ignore=not_wanted)


def bring_states(places: Path, folder: Path) -> None:
    """The states of the sweep's other cells, copied to `places`/NUMBER-*/cell, for caps on what all may spend."""
    for status in sorted(places.glob("*/cell/status.json"), key=lambda path: path.stat().st_mtime):
        other = folder.parent / status.parent.parent.name.partition("-")[0]
        if other != folder:
            other.mkdir(exist_ok=True)
            shutil.copyfile(status, other / "status.json")


def run(
    folder: Path,
    save: Callable[[], Any],
    sync_sec: float,
    secrets: Redactor,
    time_sec: float = math.inf,
    environment: Mapping[str, str] | None = None,
) -> int:
    """Run what is missing of the cell, saving every `sync_sec` and at the end, and return the runner's exit code.

    It is stopped, cleanly, after `time_sec`, and when this function is left by an exception.
    """
    until, log = time.monotonic() + time_sec, folder.parent / f"{folder.name}.log"
    with log.open("ab") as output:
        runner = subprocess.Popen(
            [sys.executable, "-m", __name__, str(folder)],
            stdout=output,
            stderr=output,
            env={**os.environ, **(environment or {})},
        )
    try:
        while runner.poll() is None and time.monotonic() < until:
            with contextlib.suppress(subprocess.TimeoutExpired):
                runner.wait(sync_sec)
            save()
    finally:
        _stop(runner)
        _add_log(folder, log, secrets)
        if runner.returncode == 0 and time.monotonic() >= until:
            _out_of_time(folder)
        save()
    return runner.returncode


def _stop(runner: subprocess.Popen[bytes]) -> None:
    """Have the runner end, with its sandboxes; a second signal that comes meanwhile changes nothing."""
    if runner.poll() is not None:
        return
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
    ignored = {number: signal.signal(number, signal.SIG_IGN) for number in numbers}
    try:
        runner.send_signal(signal.SIGTERM)
        runner.wait(STOP_SEC)
    except subprocess.TimeoutExpired:
        runner.kill()
        runner.wait()
    finally:
        for number, handler in ignored.items():
            signal.signal(number, handler)


def _add_log(folder: Path, log: Path, secrets: Redactor) -> None:
    """Keep what the runner printed, without secrets, where `ptb logs` finds it."""
    if text := log.read_text(errors="replace").strip():
        with (folder / "runner.log").open("a") as file:
            file.write(f"{secrets.text(text)}\n")
    log.unlink()


def _out_of_time(folder: Path) -> None:
    if (read_json(folder / "status.json") or {}).get("state") == "cancelled":
        mark(read_cell(folder), "lost", "its job's time was up: what is finished is kept, resume does the rest")


# --- The process that runs the cell -------------------------------------------------------------------


def main(folder: Path) -> int:
    """Look whether this machine has what the cell needs, then run what is missing of it."""
    from ptb_runner import plan

    try:
        cell = read_cell(folder)
        faults = plan.preflight(cell.config)
    except UsageError as error:
        print(error, file=sys.stderr)
        return 1
    if faults:
        print(*faults, sep="\n", file=sys.stderr)
        mark(cell, "failed", "in the job: " + "; ".join(fault.replace("\n ", ":") for fault in faults))
        return 1
    job.CellJob(folder)()
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
