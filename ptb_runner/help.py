"""The help text: usage, verbs, the menu of groups and choices, options and flags."""

from __future__ import annotations

import shutil
import sys
import textwrap
from importlib.metadata import version as version_of

from ptb_runner import menu
from ptb_runner.config import judge_options, options

_INTRO = """\
ptb runs agents on tasks in sandboxes and scores what they leave behind, as a configuration says.

usage: ptb [GROUP=CHOICE ...] [OPTION=VALUE ...]     run a cell: benchmark x model x agent x backend
       ptb -m GROUP=CHOICE,CHOICE ...                sweep: a cell for each combination
       ptb VERB ...                                  look at a run, carry on with it, check this machine

examples:
  ptb                                               post-train and score the embedded model
  ptb benchmark=hello attempts=8 concurrency=8      eight trials at once
  ptb benchmark=task benchmark.path=DIR             any Harbor task folder
  ptb dry_run=true                                  plan, render and check, launch nothing
"""


def print_help(argv: list[str], conf_dirs: list[str]) -> None:
    """Print the help text: usage, verbs, groups with their choices, options of the groups named in `argv`, flags."""
    width = min(shutil.get_terminal_size((120, 24)).columns, 120) if sys.stdout.isatty() else 120
    print(_INTRO)
    from ptb_runner.verbs import VERBS

    print("verbs:")
    for name, verb in VERBS.items():
        _entry(f"  {name}", " ".join((verb.__doc__ or "").split()), width)
    for group in menu.groups(conf_dirs):
        print(f"\n{group}= {menu.GROUP_HELP.get(group, '')}".rstrip())
        for choice in menu.choices(group, conf_dirs):
            _entry(f"  {choice}", menu.line(group, choice, conf_dirs), width)
    print("\noptions (those of a group: ptb --help GROUP):")
    wanted = [word for word in argv if word in menu.groups(conf_dirs)]
    for item in (*options(), *judge_options("NAME")):
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
    indent = 22
    lines = textwrap.wrap(text, max(width - indent, 30)) or [""]
    if len(name) < indent - 1:
        print(f"{name:<{indent}}{lines[0]}".rstrip())
        lines = lines[1:]
    else:
        print(name)
    for line in lines:
        print(" " * indent + line)


def print_version() -> None:
    """Print the versions of this program and of Harbor."""
    print(f"ptb-runner {version_of('ptb-runner')}, harbor {version_of('harbor')}")
