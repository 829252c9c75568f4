"""Carrying on and stopping: ptb resume, stop."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from ptb_runner import cell as cells
from ptb_runner import launch, trial_folders
from ptb_runner.cell import Cell
from ptb_runner.explain import UsageError
from ptb_runner.terminal import console, shown
from ptb_runner.verbs.command import cells_of, is_sweep, log_to, outcomes_in, parser_of

STOP_SEC = 15.0  # how long `stop` waits for a runner to end its sandboxes


def resume(arguments: list[str]) -> int:
    """Run what is missing of a sweep or a cell: trials that never began or were interrupted; --retry adds outcomes."""
    from ptb_runner import sweep
    from ptb_runner.single import carry_on

    parser = parser_of(resume)
    parser.add_argument("--retry", default="", metavar="OUTCOME,...", help="run trials with these outcomes again")
    chosen = parser.parse_args(arguments)
    again = outcomes_in(chosen.retry, "--retry")
    folder = chosen.folder.resolve()
    found = cells_of(folder)
    sweep.check_machine([cell.config for cell in found])
    at_work = {cell.folder for cell in found if launch.bring(cell.folder)}
    for cell in found if again else []:
        if cell.folder not in at_work:
            with cells.locked(cell.folder):
                trial_folders.set_aside_outcomes(cell, again)
    if is_sweep(folder):
        return sweep.run(folder, found)
    if at_work:
        raise UsageError(f"{folder}: its runner is at work elsewhere\n  ptb status {folder}")
    if found[0].config.launcher.kind in launch.IN_JOBS and (folder.parent / "sweep.yaml").exists():
        return sweep.run(folder.parent, found)
    log_to(folder)
    return carry_on(folder)


def stop(arguments: list[str]) -> int:
    """Stop a sweep or a cell that runs, from any process: its sandboxes end, what is finished stays."""
    chosen = parser_of(stop).parse_args(arguments)
    folder = chosen.folder.resolve()
    found = cells_of(folder)
    kind, whole = found[0].config.launcher.kind, is_sweep(folder)
    sweep = folder if whole else folder.parent
    if kind in launch.IN_JOBS and (sweep / "sweep.yaml").exists():
        numbers = None if whole else [int(folder.name)]
        busy = [sweep / str(number) for number in launch.cancel(sweep, kind, numbers)]
    else:
        busy = _stop_here(found)
    out = console()
    for place in busy:
        out.print(f"still running: {shown(place)}", markup=False)
    out.print("stopped" if not busy else f"{len(busy)} cells did not stop")
    out.print(f"next: ptb resume {shown(folder)}", markup=False)
    return 1 if busy else 0


def _stop_here(found: list[Cell]) -> list[Path]:
    """End the runners of cells on this machine; the folders of those that are still running after STOP_SEC."""
    for pid in {pid for cell in found if (pid := _runner_of(cell)) is not None}:
        os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + STOP_SEC
    while (busy := [cell.folder for cell in found if cells.is_held(cell.folder)]) and time.monotonic() < deadline:
        time.sleep(0.1)
    return busy


def _runner_of(cell: Cell) -> int | None:
    """The process here that works on a cell; None when nobody does. Raises UsageError when it is elsewhere."""
    if not cells.is_held(cell.folder):
        return None
    owner = (cells.read_json(cell.folder / "status.json") or {}).get("launcher", {})
    if owner.get("host") != os.uname().nodename:
        raise UsageError(f"{cell.folder}: its runner is on {owner.get('host')}\n  type this command there")
    return owner.get("pid")
