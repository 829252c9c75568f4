"""What a report shows of one trial, as plain data: its record, what it left on disk, its trace and its last output."""

from __future__ import annotations

import itertools
import math
import os
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from ptb_runner import trace
from ptb_runner.results.row import Row

MOST_FILES = 300  # that a page lists; the trial's folder has the rest
MOST_VALUES = 200  # of metrics or of one verdict
_CUT = trace.Cut(text=4000, call=2000, output=1500)
_ROOM = 24_000_000  # characters of all traces together
_LEAST_ROOM, _MOST_ROOM = 4_000, 200_000  # of one
_TAIL_BYTES = 4096  # of a log
_LOGS = ("verifier/test-stdout.txt", "trial.log")


@dataclass(frozen=True)
class File:
    """A file that a trial left; `href` leads to it from where the report lies, if anything does."""

    name: str
    href: str | None
    size: int


def whole(trial: dict[str, Any]) -> dict[str, Any]:
    """A record with everything that a page shows: those of other versions and of plain Harbor jobs may hold less."""
    names = ("attempt", "task", "agent_version", "task_checksum", "metrics", "trial_dir", "review", "judge_cost_usd")
    judgements = trial.get("judgements")
    judged = {"judgements": judgements if isinstance(judgements, dict) else {}}
    error = {"error": {"phase": None} | trial["error"]} if trial["error"] else {}
    return dict.fromkeys(names) | trial | judged | error


def trial_folder(folder: Path, row: Row, trial: dict[str, Any]) -> Path | None:
    """Where a trial's files are; None when they are not there, or when its record points out of its cell."""
    cell = (folder / row.folder).resolve()
    named = trial.get("trial_dir")
    place = cell / named if isinstance(named, str) and "\0" not in named else cell / "job" / trial["name"]
    try:
        inside = place.resolve().is_relative_to(cell) and place.is_dir()
    except (OSError, ValueError):
        return None
    return place if inside else None


def files(place: Path, links_from: Path | None) -> list[File]:
    """The files below a trial's folder, in order; symbolic links are not followed."""
    found = []
    for root, folders, names in os.walk(place):
        folders.sort()
        for name in sorted(names):
            path = Path(root) / name
            href = quote(os.fsencode(os.path.relpath(path, links_from))) if links_from else None
            found.append(File(str(path.relative_to(place)), href, path.lstat().st_size))
    return found


@dataclass(frozen=True)
class Turn:
    """One turn of a trace: its heading, and what was said and done as pairs of kind and text."""

    who: str
    head: str
    parts: list[tuple[str, str]]


@dataclass(frozen=True)
class Excerpt:
    """A trace as far as there is room for it: its first turns and, more of them, its last."""

    source: str
    first: list[Turn]
    n_left_out: int
    last: list[Turn]


def room(n_trials: int) -> int:
    """How many characters of each trace a report of so many trials shows."""
    return min(_MOST_ROOM, max(_LEAST_ROOM, _ROOM // max(n_trials, 1)))


def excerpt(place: Path, most: int) -> Excerpt | None:
    """A trial's trace in about so many characters; None when there is none."""
    found = trace.read(place)
    if found is None:
        return None
    pieces = itertools.groupby(trace.pieces(found, _CUT), lambda piece: piece[0][0])
    turns = [_turn(found.turns[number].who, list(own)) for number, own in pieces]
    n_first = _fitting(turns, most // 3)
    n_last = _fitting(turns[:n_first:-1], most - most // 3) + 1 if n_first < len(turns) else 0
    last = turns[max(n_first, len(turns) - n_last) :]
    return Excerpt(found.source, turns[:n_first], len(turns) - n_first - len(last), last)


def _turn(who: str, pieces: list[tuple[tuple[int, int, str], str]]) -> Turn:
    (_, head), *parts = pieces
    return Turn(who, head.strip(), [(kind, _plain(kind, text)) for (_, _, kind), text in parts])


def _plain(kind: str, text: str) -> str:
    """A piece without the margin that it has on a terminal."""
    lines = textwrap.dedent(text).split("\n")
    return "\n".join(line.removeprefix("| ") if kind == "output" else line for line in lines)


def _fitting(turns: list[Turn], most: int) -> int:
    """How many of the first turns have room, at least one."""
    sizes = itertools.accumulate(len(turn.head) + sum(len(text) for _, text in turn.parts) for turn in turns)
    return max(1, sum(size <= most for size in sizes)) if turns else 0


def tails(place: Path) -> Iterator[tuple[str, str]]:
    """The names of logs and the last that stands in them."""
    for name in _LOGS:
        path = place / name
        if path.is_symlink() or not path.is_file():
            continue
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - _TAIL_BYTES))
            text = file.read().decode(errors="replace").strip()
        if text:
            yield name, text


def flat(value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """Nested data as dotted names and texts, in the order in which it stands."""
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from flat(inner, f"{name}.{key}" if name else str(key))
    elif isinstance(value, list) and any(isinstance(inner, dict | list) for inner in value):
        for number, inner in enumerate(value):
            yield from flat(inner, f"{name}.{number}" if name else str(number))
    else:
        yield name, _text(value)


def _text(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "-"}[value]
    if isinstance(value, float):
        return f"{value:.6g}" if math.isfinite(value) else str(value)
    if isinstance(value, list):
        return ", ".join(map(_text, value)) or "-"
    return str(value) if value != {} else "-"
