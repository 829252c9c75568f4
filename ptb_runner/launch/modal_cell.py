"""What runs in a Modal function: one cell, on the container's own disk, copied to the results' volume as it goes.

The cell itself is run by a process of its own (this module as a program), so that it can be ended like any other
runner: by SIGTERM, at which it stops its trials and removes its sandboxes. The function may be begun again at any
time, after a preemption say: it then carries on with what it had copied.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path

from ptb_runner.cell import mark, read_cell, read_json
from ptb_runner.explain import UsageError
from ptb_runner.launch import job
from ptb_runner.redact import Redactor

RESULTS = "/mnt/ptb-results"
"""Where the volume is mounted: <place>/cell.tar as it was submitted, and <place>/cell/ as far as it is."""
CODE = "/mnt/ptb-code"
"""Where the image holds the program."""

WORK = Path("/var/tmp/ptb-sweep")
STOP_SEC = 60.0  # how long the runner may take to stop its trials
NOT_COPIED = frozenset({"task", "cell.yaml", ".runner.lock", ".launcher.lock"})


def run(app: str, volume: str, place: str, number: int, sync_sec: float, time_sec: float, secrets: list[str]) -> str:
    """The function: run what is missing of the cell at `place` of the volume, and return the state it is in then.

    `app` is the sweep's own, which ends with it.
    `secrets` names the variables whose values must be in no file. Stops the cell, cleanly, after `time_sec`, and when
    the call is cancelled or its container taken away.
    """
    import modal

    results = modal.Volume.from_name(volume)
    folder, copy = WORK / str(number), Path(RESULTS, place, "cell")
    _unpack(Path(RESULTS, place), folder)
    _others(number)
    until = time.monotonic() + time_sec
    with (WORK / f"{number}.log").open("ab") as output:
        command = [sys.executable, "-m", __name__, str(folder)]
        # Sandboxes on Modal are made in the sweep's own app: what a runner that was killed left ends with the app.
        environment = {**os.environ, "PTB_MODAL_APP": app}
        runner = subprocess.Popen(command, stdout=output, stderr=output, env=environment)
    try:
        while runner.poll() is None and time.monotonic() < until:
            with contextlib.suppress(subprocess.TimeoutExpired):
                runner.wait(sync_sec)
            mirror(folder, copy)
            results.commit()
    finally:  # its own end, no time left, a cancelled call (an exception), a container that is taken away (the same)
        _stop(runner)
        _add_log(folder, secrets)
        if runner.returncode == 0 and time.monotonic() >= until:
            _out_of_time(folder)
        mirror(folder, copy)
        results.commit()
    return str((read_json(folder / "status.json") or {}).get("state"))


def _unpack(source: Path, folder: Path) -> None:
    """The cell as it was submitted, and over that what an earlier container had copied."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    with tarfile.open(source / "cell.tar") as archive:
        archive.extractall(folder, filter="tar")
    if (source / "cell").is_dir():
        mirror(source / "cell", folder)
    (folder / "sweep.yaml").replace(folder.parent / "sweep.yaml")


def _others(number: int) -> None:
    """The states of the sweep's other cells, for caps on what all of them may spend."""
    for status in sorted(Path(RESULTS).glob("*/cell/status.json"), key=lambda path: path.stat().st_mtime):
        other = WORK / status.parent.parent.name.partition("-")[0]
        if other.name != str(number):
            other.mkdir(exist_ok=True)
            shutil.copyfile(status, other / "status.json")


def _stop(runner: subprocess.Popen[bytes]) -> None:
    """Have the runner end, with its sandboxes; a second signal that comes meanwhile changes nothing."""
    if runner.poll() is not None:
        return
    ignored = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGUSR1)}
    try:
        runner.send_signal(signal.SIGTERM)
        runner.wait(STOP_SEC)
    except subprocess.TimeoutExpired:
        runner.kill()
        runner.wait()
    finally:
        for number, handler in ignored.items():
            signal.signal(number, handler)


def _add_log(folder: Path, secrets: list[str]) -> None:
    """Keep what the runner printed, without secrets, where `ptb logs` finds it."""
    log = folder.parent / f"{folder.name}.log"
    if text := log.read_text(errors="replace").strip():
        clean = Redactor({name: os.environ[name] for name in secrets if name in os.environ}).text(text)
        with (folder / "runner.log").open("a") as file:
            file.write(f"{clean}\n")
    log.unlink()


def _out_of_time(folder: Path) -> None:
    if (read_json(folder / "status.json") or {}).get("state") == "cancelled":
        mark(read_cell(folder), "lost", "its function's time was up: what is finished is kept, resume does the rest")


# --- Copies -------------------------------------------------------------------------------------------


def mirror(source: Path, target: Path) -> None:
    """Make `target` hold what `source` does, of the files that a run writes; only what changed is copied.

    The source may change meanwhile: each file is whole, and the next copy has the rest.
    """
    target.mkdir(parents=True, exist_ok=True)
    names = set(_names(source))
    for name in sorted(names):
        with contextlib.suppress(OSError):  # it was there a moment ago
            _copy(source / name, target / name)
    for name in sorted(set(_names(target)) - names, reverse=True):
        path = target / name
        with contextlib.suppress(OSError):
            path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()


def _names(folder: Path) -> Iterator[str]:
    for where, folders, files in os.walk(folder):
        here = Path(where).relative_to(folder)
        if where == str(folder):
            folders[:] = [name for name in folders if name not in NOT_COPIED]
            files = [name for name in files if name not in NOT_COPIED]
        yield from (str(here / name) for name in (*folders, *files) if not name.endswith(".tmp"))


def _copy(source: Path, target: Path) -> None:
    status = source.lstat()
    if source.is_dir() and not source.is_symlink():
        target.mkdir(exist_ok=True)
        return
    with contextlib.suppress(FileNotFoundError):
        known = target.lstat()
        if (known.st_size, known.st_mtime_ns) == (status.st_size, status.st_mtime_ns):
            return
    partial = target.with_name(f".{target.name[:200]}.copy.tmp")
    shutil.copy2(source, partial, follow_symlinks=False)
    partial.replace(target)


# --- The process that runs the cell -------------------------------------------------------------------


def main(folder: Path) -> int:
    """Look whether this container has what the cell needs, then run what is missing of it."""
    from ptb_runner import plan

    try:
        cell = read_cell(folder)
        faults = plan.preflight(cell.config)
    except UsageError as error:
        print(error, file=sys.stderr)
        return 1
    if faults:
        mark(cell, "failed", "in the Modal function: " + "; ".join(fault.replace("\n ", ":") for fault in faults))
        return 1
    job.CellJob(folder)()
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
