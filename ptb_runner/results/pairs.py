"""Pair the trials of two sides: by benchmark, model, task and attempt.

A side is one agent of a sweep, of a cell or of whatever else `read_rows` reads. What was planned on both sides and has
a value on one only stays visible as half a pair.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from ptb_runner.explain import UsageError
from ptb_runner.results.row import Row
from ptb_runner.results.rows import read_rows
from ptb_runner.results.scores import AWAITS_REVIEW, awaited, contestants, counted, grouped

Value = Callable[[Row, dict[str, Any]], float | None]


@dataclass(frozen=True)
class Side:
    """One agent of one folder."""

    folder: Path
    agent: str
    rows: list[Row]


@dataclass(frozen=True)
class Half:
    """One side of a pair: what its trial counts as, its outcome (or why there is none), and where it lies."""

    value: float | None
    state: str
    cell: int
    trial: str | None


@dataclass(frozen=True)
class Pair:
    """A trial that both sides planned. `repeat` is the seed, or the number of the cell where seeds do not agree."""

    benchmark: str
    model: str
    task: str
    repeat: str
    attempt: int
    a: Half
    b: Half

    @property
    def difference(self) -> float | None:
        return None if self.a.value is None or self.b.value is None else self.b.value - self.a.value


class Paired(NamedTuple):
    """All pairs, and how many trials and which benchmarks and models only one side planned."""

    pairs: list[Pair]
    more_a: int
    more_b: int
    only_a: list[str]
    only_b: list[str]


# --- Sides --------------------------------------------------------------------------------------------


def sides(text: str) -> list[Side]:
    """The agents of DIR, or the one of DIR:AGENT. Raises UsageError when there is no such folder or agent."""
    folder, agent = Path(text), None
    if not folder.exists() and ":" in text:
        name, _, agent = text.rpartition(":")
        folder = Path(name)
    if not folder.exists():
        raise UsageError(
            f"{text}: there is no such folder\n  name a sweep, a cell, or DIR:AGENT for one agent of a sweep"
        )
    found = contestants(read_rows(folder))
    if not found:
        raise UsageError(f"{folder}: has no cells")
    if agent is not None and agent not in found:
        raise UsageError(f"{text}: {folder} has no agent {agent!r}\n  it has: {', '.join(map(repr, found))}")
    return [Side(folder, name, rows) for name, rows in found.items() if agent in (None, name)]


def opponents(first: list[Side], other: list[Side]) -> list[tuple[Side, Side]]:
    """Who is compared with whom: the only agent with all of the other side's, else agents of one name."""
    if len(first) == 1:
        return [(first[0], one) for one in other]
    names = {one.agent: one for one in first}
    if common := [(names[one.agent], one) for one in other if one.agent in names]:
        return common
    a, b = (", ".join(one.agent for one in own) for own in (first, other))
    where = first[0].folder
    raise UsageError(
        f"{where} has the agents {a}; {other[0].folder} has {b}: no name is on both sides\n"
        f"  say which one to compare with: ptb compare '{where}:{first[0].agent}' '{other[0].folder}'"
    )


# --- Pairs --------------------------------------------------------------------------------------------


def pair(a: list[Row], b: list[Row], value: Value = counted) -> Paired:
    """The pairs of two sides' cells."""
    places_a, places_b = (grouped(rows, lambda row: (row.benchmark, row.model)) for rows in (a, b))
    both = [place for place in places_a if place in places_b]
    pairs, more_a, more_b = [], 0, 0
    for place in both:
        own, more = _pairs_of(*place, places_a[place], places_b[place], value)
        pairs += own
        more_a, more_b = more_a + more[0], more_b + more[1]
    only = [[f"{name} x {model}" for name, model in one if (name, model) not in both] for one in (places_a, places_b)]
    return Paired(pairs, more_a, more_b, *only)


Key = tuple[str, str, int]  # task, repeat, attempt


def _pairs_of(
    benchmark: str, model: str, a: list[Row], b: list[Row], value: Value
) -> tuple[list[Pair], tuple[int, int]]:
    """The pairs of one benchmark and model, and how many trials each side planned beyond them."""
    names = [dict.fromkeys(_task(trial, benchmark) for row in rows for trial in row.trials) for rows in (a, b)]
    # Where each side has one task it is the same one, whatever it is called there.
    tasks = [benchmark] if all(len(one) <= 1 for one in names) else list(names[0] | names[1])
    seeds = [[_seed(row) for row in rows] for rows in (a, b)]
    use_seeds = all(len(set(one)) == len(one) for one in seeds) and set(seeds[0]) & set(seeds[1])
    labels = seeds if use_seeds else [[str(number) for number in range(len(rows))] for rows in (a, b)]
    halves = [
        {key: half for row, label in zip(rows, own, strict=True) for key, half in _halves(row, label, tasks, value)}
        for rows, own in zip((a, b), labels, strict=True)
    ]
    common = [key for key in halves[0] if key in halves[1]]
    pairs = [Pair(benchmark, model, *key, a=halves[0][key], b=halves[1][key]) for key in common]
    return pairs, (len(halves[0]) - len(common), len(halves[1]) - len(common))


def _task(trial: dict[str, Any], benchmark: str) -> str:
    return trial.get("task") or benchmark


def _seed(row: Row) -> str:
    own = [text.partition("=")[2] for text in row.overrides if text.lstrip("+").startswith("seed=")]
    return own[-1] if own else "0"


def _halves(row: Row, repeat: str, tasks: list[str], value: Value) -> Iterator[tuple[Key, Half]]:
    """A cell's planned trials, also those that do not exist."""
    by_task = grouped(row.trials, lambda trial: tasks[0] if len(tasks) == 1 else _task(trial, row.benchmark))
    expected = row.score["n_expected"]
    for task in tasks:
        planned = 1 if expected is None else math.ceil(expected / len(tasks))
        own = _by_attempt(by_task.get(task, []), planned)
        for attempt in sorted({*range(1, planned + 1), *own}):
            yield (task, repeat, attempt), _half(row, own.get(attempt), value)


def _by_attempt(trials: list[dict[str, Any]], planned: int) -> dict[int, dict[str, Any]]:
    """Trials by the number of their attempt; counted anew where there is none, or where it goes over all tasks."""
    numbers = [number for trial in trials if isinstance(number := trial.get("attempt"), int)]
    if len(set(numbers)) < len(trials) or max(numbers, default=0) > planned:
        numbers = list(range(1, len(trials) + 1))
    return dict(zip(numbers, trials, strict=True))


def _half(row: Row, trial: dict[str, Any] | None, value: Value) -> Half:
    if trial is None:
        return Half(None, "no trial" if row.state == "finished" else row.state, row.number, None)
    if awaited(trial):
        return Half(None, AWAITS_REVIEW, row.number, trial["name"])
    return Half(value(row, trial), trial["outcome"], row.number, trial["name"])
