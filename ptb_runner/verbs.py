"""The verbs that work on a folder or on this machine: `ptb VERB ...`."""

from __future__ import annotations

import argparse
import json
import logging
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from rich.table import Table

from ptb_runner import menu
from ptb_runner.config import options
from ptb_runner.explain import UsageError


class _Parser(argparse.ArgumentParser):
    """argparse with our way of saying what is wrong."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{self.prog}: {message}\n  {' '.join(self.format_usage().split())}")


def _parser(verb: str, *, folder: bool = True) -> _Parser:
    text = " ".join((VERBS[verb].__doc__ or "").split())
    parser = _Parser(prog=f"ptb {verb}", description=text)
    if folder:
        parser.add_argument("folder", type=Path, help="the folder of a cell")
    return parser


def resume(arguments: list[str]) -> int:
    """Run what is missing of a cell: trials that never began or were interrupted; --retry adds outcomes to redo."""
    from ptb_runner import cell as cells
    from ptb_runner import run
    from ptb_runner.cli import run_and_show
    from ptb_runner.outcome import Outcome
    from ptb_runner.plan import preflight

    parser = _parser("resume")
    parser.add_argument("--retry", default="", metavar="OUTCOME,...", help="run trials with these outcomes again")
    chosen = parser.parse_args(arguments)
    again = [name for name in chosen.retry.split(",") if name]
    for name in again:
        if name not in Outcome.__members__:
            raise UsageError(f"--retry {name}: no such outcome\n  they are: {', '.join(Outcome.__members__)}")
    folder = chosen.folder.resolve()
    cell = cells.read_cell(folder)
    faults = preflight(cell.config)
    if faults:
        raise UsageError("\nerror: ".join(faults))
    _log_to(folder)
    if again:
        with cells.locked(folder):
            run.set_aside_outcomes(cell, again)
    return run_and_show(folder)


def _log_to(folder: Path) -> None:
    handler = logging.FileHandler(folder / "runner.log")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)


def status(arguments: list[str]) -> int:
    """Say how far a cell is: its state, its trials and what they are doing."""
    from ptb_runner import cell as cells
    from ptb_runner.display import clock, console

    parser = _parser("status")
    parser.add_argument("--json", action="store_true", help="print status.json as it is")
    chosen = parser.parse_args(arguments)
    cells.read_cell(chosen.folder)
    state = cells.read_json(chosen.folder / "status.json")
    if state is None:
        raise UsageError(f"{chosen.folder}: has no status yet\n  ptb resume {chosen.folder}")
    if chosen.json:
        print(json.dumps(state, indent=2))
        return 0
    attempts = state["attempts"]
    out = console()
    out.print(f"cell {state['cell_id']}: {state['state']}, as of {state['updated_at']}", markup=False)
    if state["state"] == "running" and not cells.is_held(chosen.folder):
        out.print(f"but no runner is at work on it; next: ptb resume {chosen.folder}", markup=False)
    ended = ", ".join(f"{count} {outcome}" for outcome, count in attempts["by_outcome"].items()) or "none"
    out.print(f"trials over: {attempts['finished']}/{attempts['expected']} ({ended})", markup=False)
    for name, phase in attempts["running"].items():
        out.print(f"  {name}: {phase} for {clock(time.time() - state['since'][name])}", markup=False)
    if state["error"]:
        out.print(f"last error: {state['error']}", markup=False)
    return 0


def doctor(arguments: list[str]) -> int:
    """Check what this machine has for running cells and say how to mend the rest; overrides choose the backend."""
    from ptb_runner.display import console
    from ptb_runner.doctor import checks

    parser = _parser("doctor", folder=False)
    parser.add_argument("overrides", nargs="*", metavar="OVERRIDE", help="for example backend=bubblewrap")
    chosen = parser.parse_args(arguments)
    table = Table("check", "state", "what was found, or what to do", title="ptb doctor", title_justify="left")
    failed = False
    for check in checks(chosen.overrides):
        failed |= check.failed
        table.add_row(check.name, "FAIL" if check.failed else "ok", check.text)
    console().print(table)
    return 1 if failed else 0


def clean(arguments: list[str]) -> int:
    """Remove what runners that are no longer alive left behind: sandboxes and their scratch folders."""
    from ptb_runner.display import console
    from ptb_runner.sandbox import bubblewrap

    parser = _parser("clean", folder=False)
    parser.add_argument("--scratch-dir", type=Path, help="where backend.scratch_dir pointed; default: the temp folder")
    chosen = parser.parse_args(arguments)
    removed = bubblewrap.reap(chosen.scratch_dir)
    for folder in removed:
        console().print(f"removed {folder}", markup=False)
    console().print(f"{len(removed)} leftover sandboxes removed")
    return 0


VERBS: dict[str, Callable[[list[str]], int]] = {"status": status, "resume": resume, "doctor": doctor, "clean": clean}


# --- Help ---------------------------------------------------------------------------------------------

_INTRO = """\
ptb runs agents on tasks in sandboxes and scores what they leave behind, as a configuration says.

usage: ptb [GROUP=CHOICE ...] [OPTION=VALUE ...]     run a cell: benchmark x model x agent x backend
       ptb VERB ...                                  look at a run, carry on with it, check this machine

examples:
  ptb                                               post-train and score the embedded model
  ptb benchmark=hello attempts=8 concurrency=8      eight trials at once
  ptb benchmark=task benchmark.path=DIR             any Harbor task folder
  ptb dry_run=true                                  plan, render and check, launch nothing
"""


def help(argv: list[str], conf_dirs: list[str]) -> None:
    """Print the help text: usage, verbs, groups with their choices, options of the groups named in `argv`, flags."""
    width = min(shutil.get_terminal_size((120, 24)).columns, 120) if sys.stdout.isatty() else 120
    print(_INTRO)
    print("verbs:")
    for name, verb in VERBS.items():
        _entry(f"  {name}", " ".join((verb.__doc__ or "").split()), width)
    for group in menu.groups(conf_dirs):
        print(f"\n{group}= {menu.GROUP_HELP.get(group, '')}".rstrip())
        for choice in menu.choices(group, conf_dirs):
            _entry(f"  {choice}", menu.line(group, choice, conf_dirs), width)
    print("\noptions (those of a group: ptb --help GROUP):")
    wanted = [word for word in argv if word in menu.groups(conf_dirs)]
    for item in options():
        group = item.key.partition(".")[0]
        if group in wanted or group not in menu.GROUP_HELP:
            _entry(f"  {item.key}={_shown(item.default)}", f"{item.help} ({item.allowed})", width)
    print(
        "\nflags:\n  --cfg job [--resolve] [-p GROUP]   print the composed configuration\n"
        "  --config-dir DIR                  a folder with groups of your own, such as benchmark/mine.yaml\n"
        '  -sc install=bash                  tab completion: eval "$(ptb -sc install=bash)"\n'
        "  --version"
    )


def _shown(value: object) -> str:
    if isinstance(value, bool) or value is None:
        return str(value).lower().replace("none", "null")
    return str(getattr(value, "name", value)).replace("'", "").replace(" ", "")


def _entry(name: str, text: str, width: int) -> None:
    import textwrap

    indent = 22
    lines = textwrap.wrap(text, max(width - indent, 30)) or [""]
    if len(name) < indent - 1:
        print(f"{name:<{indent}}{lines[0]}".rstrip())
        lines = lines[1:]
    else:
        print(name)
    for line in lines:
        print(" " * indent + line)


def version() -> None:
    """Print the versions of this program and of Harbor."""
    from importlib.metadata import version as of

    print(f"ptb-runner {of('ptb-runner')}, harbor {of('harbor')}")
