"""What goes on: ptb status, logs, trace."""

from __future__ import annotations

import argparse
import dataclasses
import json
import shlex
import threading
import time
from pathlib import Path
from typing import Any

from ptb_runner import cell as cells
from ptb_runner import launch
from ptb_runner.explain import UsageError
from ptb_runner.sweepfile import read_sweep
from ptb_runner.terminal import console, shown
from ptb_runner.times import clock
from ptb_runner.verbs.command import cell_and_trial, is_sweep, parser_of


def status(arguments: list[str]) -> int:
    """Say how far a sweep or a cell is: states, outcomes, what runs, what was spent; --watch shows it live."""
    parser = parser_of(status)
    parser.add_argument("--watch", action="store_true", help="show it live until everything is over")
    parser.add_argument("--json", action="store_true", help="print it for programs")
    chosen = parser.parse_args(arguments)
    folder = chosen.folder.resolve()
    return _sweep_status(folder, chosen) if is_sweep(folder) else _cell_status(folder, chosen)


def _sweep_status(folder: Path, chosen: argparse.Namespace) -> int:
    from ptb_runner import watch
    from ptb_runner.display import print_states

    def refresh() -> None:
        launch.refresh(folder, read_sweep(folder)["launcher"])

    refresh()
    states = watch.read(folder)
    if chosen.json:
        print(json.dumps([dataclasses.asdict(state) | _job(folder / str(state.number)) for state in states], indent=2))
        return 0
    if chosen.watch and not all(state.is_over for state in states):
        watch.follow(folder, 30.0, console(), threading.Event(), until_over=True, refresh=refresh)
        states = watch.read(folder)
    print_states(folder, states, console())
    _print_notes(folder)
    return 0


def _job(cell: Path) -> dict[str, Any]:
    """What is known of the job that works for a cell, if any does."""
    record = cells.read_json(cell / "launcher.json")
    return {"job": record} if record else {}


def _print_notes(folder: Path) -> None:
    for line in launch.notes(folder):
        console().print(line, markup=False)


def _cell_status(folder: Path, chosen: argparse.Namespace) -> int:
    elsewhere = launch.bring(folder)
    state = cells.read_json(folder / "status.json")
    if not isinstance(state, dict) or not isinstance(state.get("attempts"), dict):
        raise UsageError(f"{folder / 'status.json'}: missing or damaged\n  ptb resume {folder} writes it anew")
    if chosen.json:
        print(json.dumps(state, indent=2))
        return 0
    out = console()
    while True:
        for line in _status_lines(state):
            out.print(line, markup=False)
        held = elsewhere or cells.is_held(folder)
        if state["state"] == "running" and not held:
            out.print(f"but no runner is at work on it; next: ptb resume {shown(folder)}", markup=False)
        if not chosen.watch or not held:
            _print_notes(folder)
            return 0
        time.sleep(2.0)
        elsewhere = elsewhere and launch.bring(folder)
        state = cells.read_json(folder / "status.json") or state


def _status_lines(state: dict[str, Any]) -> list[str]:
    attempts = state["attempts"]
    ended = ", ".join(f"{count} {outcome}" for outcome, count in attempts["by_outcome"].items()) or "none"
    now = time.time()
    return [
        f"cell {state['cell_id']}: {state['state']}, as of {state['updated_at']}",
        f"trials over: {attempts['finished']}/{attempts['expected']} ({ended})",
        *(
            f"  {name}: {phase} for {clock(now - state['since'].get(name, now))}"
            for name, phase in attempts["running"].items()
        ),
        *([f"last error: {state['error']}"] if state["error"] else []),
    ]


def logs(arguments: list[str]) -> int:
    """Print a cell's runner.log, or with CELL/TRIAL what that trial's agent and verifier printed; -f follows.

    With --serve what the server of its model printed.
    """
    from ptb_runner import servers

    parser = parser_of(logs, trial=True)
    parser.add_argument("-f", "--follow", action="store_true", help="go on until the cell is over")
    parser.add_argument("--serve", action="store_true", help="the log of the server that was started for its model")
    chosen = parser.parse_args(arguments)
    cell, trial = cell_and_trial(chosen.folder, chosen.which, "logs")
    if not (trial or chosen.serve) and launch.prints_log(cell, chosen.follow):
        return 0
    elsewhere = launch.bring(cell)
    paths = [_server_log(cell, trial)] if chosen.serve else _trial_logs(cell, trial) if trial else [cell / "runner.log"]
    if not (trial or chosen.serve) and servers.log_of(cell):
        again = ["ptb", "logs", str(shown(chosen.folder)), *([chosen.which] if chosen.which else []), "--serve"]
        console(stderr=True).print(f"its model server's log: {shlex.join(again)}", markup=False)
    _print_files(paths, cell if chosen.follow else None, elsewhere)
    return 0


def _trial_logs(cell: Path, trial: str) -> list[Path]:
    folder = cell / "job" / trial
    if not folder.is_dir():
        names = ", ".join(sorted(path.name for path in (cell / "job").glob("*__*"))) or "none yet"
        raise UsageError(f"{cell}: has no trial {trial!r}\n  it has: {names}")
    return [folder / "trial.log", *sorted(folder.glob("agent/*.txt")), folder / "verifier" / "test-stdout.txt"]


def _server_log(cell: Path, trial: str) -> Path:
    from ptb_runner import servers

    if trial:
        raise UsageError("ptb logs --serve: a trial has no server of its own\n  leave the trial out")
    if (path := servers.log_of(cell)) is None:
        raise UsageError(f"{cell}: no model server was started for it\n  serve=vllm starts one")
    return path


def _print_files(paths: list[Path], until_over: Path | None, elsewhere: bool) -> None:
    """Print files one after another; with `until_over` go on with what is added, until that cell is not running.

    `elsewhere`: its runner is, and what it writes has to be brought here.
    """
    printed = dict.fromkeys(paths, 0)
    while True:
        over = until_over is None or not (launch.bring(until_over) if elsewhere else cells.is_held(until_over))
        for path in [path for path in paths if path.is_file()]:
            with path.open(errors="replace") as file:
                if len(paths) > 1 and not printed[path]:
                    print(f"==> {path.name} <==")
                file.seek(printed[path])
                print(file.read(), end="", flush=True)
                printed[path] = file.tell()
        if over:
            return
        time.sleep(2.0 if elsewhere else 0.5)


def trace(arguments: list[str]) -> int:
    """Print what a trial's agent said, ran and got back, turn by turn; -f follows one that runs."""
    from ptb_runner import traceview

    parser = parser_of(trace, trial=True)
    parser.add_argument("-f", "--follow", action="store_true", help="go on until the trial is over")
    parser.add_argument("--full", action="store_true", help="cut nothing")
    chosen = parser.parse_args(arguments)
    if (chosen.folder / "agent").is_dir() and not (chosen.folder / "cell.yaml").exists():
        return traceview.show(chosen.folder, full=chosen.full)
    cell, name = cell_and_trial(chosen.folder, chosen.which, "trace")
    launch.bring(cell)
    if chosen.follow:
        return traceview.follow(cell, name, full=chosen.full)
    return traceview.show(traceview.trial(cell, name), full=chosen.full)
