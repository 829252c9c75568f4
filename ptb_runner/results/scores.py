"""Scores over cells: an agent's weighted score, with its standard error over repeats and its coverage.

The score of an agent is the weighted mean over benchmarks (`benchmark.weight`) of the mean over models. It is a
number only where every planned cell has one: a cell without a score is named, and never averaged away. As long as
a trial awaits a review there is no score at all.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from ptb_runner.config import options
from ptb_runner.outcome import SCORED, UNSCORABLE
from ptb_runner.results.row import Row

WHOLE = 1 - 1e-6  # weights of a whole set of benchmarks sum to 1
AWAITS_REVIEW = "awaits review"


@dataclass(frozen=True)
class Place:
    """One benchmark and model of an agent: the mean over its repeats.

    Repeats are the cells that differ only in their seed, or the attempts of the only cell. `n_replaced` trials
    count as the base model's score; `unscored` says why there is no mean.
    """

    benchmark: str
    model: str
    mean: float | None
    standard_error: float | None
    n_repeats: int
    n_scored: int
    n_expected: int | None
    n_replaced: int
    unscored: str | None
    cells: list[int]


@dataclass(frozen=True)
class BenchmarkScore:
    """The mean over models of an agent's scores in one benchmark; None while a model has none."""

    benchmark: str
    weight: float
    mean: float | None
    standard_error: float | None
    models: list[str]


@dataclass(frozen=True)
class AgentScore:
    """What an agent's cells come to, from 0 to 1.

    `score` is over all benchmarks and models that the benchmarks name. `partial` is the same over fewer, all that
    were planned, and `part` says which: it can only be compared with the same part of another. `why_none` says why
    there is neither; `between` is then what the score can still become, with 0 and with 1 for what is missing.
    """

    agent: str
    score: float | None
    standard_error: float | None
    partial: float | None
    part: str | None
    why_none: str | None
    between: tuple[float, float] | None
    n_repeats: int
    n_places: int
    n_places_scored: int
    n_scored: int
    n_expected: int | None
    n_replaced: int
    comparable: bool | None
    not_comparable_because: list[str]
    awaiting_review: list[str]
    benchmarks: list[BenchmarkScore]
    places: list[Place]


def agent_scores(rows: list[Row]) -> list[AgentScore]:
    """The scores of each agent over the benchmarks that have a weight; [] where none has.

    An agent is its id, with the overrides below it; where one benchmark and model was run with several settings,
    each setting is an agent of its own.
    """
    weighted = [row for row in rows if weight(row)]
    planned = list(dict.fromkeys((row.benchmark, row.model) for row in weighted))
    weights, part = _weights(weighted), _part(weighted, planned)
    return [_agent_score(agent, own, planned, weights, part) for agent, own in contestants(weighted).items()]


def grouped[T, K](items: Iterable[T], key: Callable[[T], K]) -> dict[K, list[T]]:
    """Items by key, in the order in which the keys first come."""
    groups: dict[K, list[T]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


# --- What is known of a row ---------------------------------------------------------------------------


def weight(row: Row) -> float | None:
    """The weight of the row's benchmark in the mean over benchmarks; None, also for 0, when it is in none."""
    return row.benchmark_options.get("weight") or None


def named(row: Row, group: str) -> str:
    """The id and the overrides below it: another LLM makes another agent, and no mean goes over both."""
    own = [text.lstrip("+~") for text in row.overrides]
    return " ".join([getattr(row, group), *(text for text in own if text.startswith(f"{group}."))])


def counted(row: Row, trial: dict[str, Any]) -> float | None:
    """What a trial counts as in `score.final`: its reward, or what the benchmark's policy puts in its place."""
    if trial["outcome"] in SCORED:
        return trial["reward"]
    replaced = row.benchmark_options.get("missing_score") == "base_model" and trial["outcome"] in UNSCORABLE
    return row.benchmark_options.get("zero_shot", {}).get(row.model) if replaced else None


def awaited(trial: dict[str, Any]) -> list[str]:
    """The judges whose finding about a trial a person has yet to accept or reject."""
    review = trial.get("review")
    return review.get("raised", []) if isinstance(review, dict) and review.get("state") == "awaiting" else []


def reviews(row: Row) -> list[str]:
    """The reviews that a cell awaits, a line each."""
    return [
        f"cell {row.number}: {trial['name']} ({', '.join(judges)})"
        for trial in row.trials
        if (judges := awaited(trial))
    ]


def unscored(row: Row) -> str | None:
    """Why a cell has no score, in a word; None when it has one."""
    if row.score["final"] is not None:
        return None
    if reviews(row):
        return AWAITS_REVIEW
    if row.trials and row.outcome not in SCORED:
        return row.outcome
    return "unreadable" if row.state == "finished" else row.state


def contestants(rows: list[Row]) -> dict[str, list[Row]]:
    """Rows by agent. Agents that ran one benchmark and model with several settings become one a setting."""
    found: dict[str, list[Row]] = {}
    for agent, own in grouped(rows, lambda row: named(row, "agent")).items():
        places = grouped(own, lambda row: (row.benchmark, row.model))
        if all(len({_settings(row) for row in alike}) == 1 for alike in places.values()):
            found[agent] = own
        else:
            common = frozenset.intersection(*(frozenset(_settings(row)) for row in own))
            for settings, alike in grouped(own, _settings).items():
                found[" ".join([agent, *(text for text in settings if text not in common)])] = alike
    return found


def _settings(row: Row) -> tuple[str, ...]:
    """The overrides in which repeats may not differ: all that can change a score, but for the seed."""
    free = {"seed", "attempts", "benchmark", "model", "agent", *(item.key for item in options() if not item.result)}
    keys = {text: text.lstrip("+~").partition("=")[0] for text in row.overrides}
    return tuple(sorted(text for text, key in keys.items() if key not in free and not key.startswith("agent.")))


def _part(rows: list[Row], planned: list[tuple[str, str]]) -> str | None:
    """Which part of the whole set of benchmarks and models is planned; None when all of it is."""
    lacking = [
        model
        for row in rows
        for model in row.benchmark_options.get("models") or []
        if (row.benchmark, model) not in planned
    ]
    weights = _weights(rows)
    total = math.fsum(weights.values())
    if not lacking and total >= WHOLE:
        return None
    share = "" if total >= WHOLE else f" (weights {total:.2f} of 1)"
    return f"{', '.join(weights)}{share} with {', '.join(dict.fromkeys(model for _, model in planned))}"


def _weights(rows: list[Row]) -> dict[str, float]:
    return {row.benchmark: weight(row) or 0.0 for row in rows}


# --- Means --------------------------------------------------------------------------------------------


def _agent_score(
    agent: str, rows: list[Row], planned: list[tuple[str, str]], weights: dict[str, float], part: str | None
) -> AgentScore:
    own = grouped(rows, lambda row: (row.benchmark, row.model))
    places = [_place(*place, own.get(place, [])) for place in planned]
    by_benchmark = grouped(places, lambda place: place.benchmark)
    benchmarks = [_benchmark_score(alike, weights[name]) for name, alike in by_benchmark.items()]
    why = _why_none(places, benchmarks, part)
    mean, error = (None, None) if why else _weighted(benchmarks)
    provenances = [row.result["provenance"] for row in rows]
    known = {one["comparable"] for one in provenances}
    return AgentScore(
        agent=agent,
        score=None if part else mean,
        partial=mean if part else None,
        part=part,
        standard_error=error,
        why_none=why,
        between=_between(places, weights) if why else None,
        n_repeats=min(place.n_repeats for place in places),
        n_places=len(places),
        n_places_scored=sum(place.mean is not None for place in places),
        n_scored=sum(place.n_scored for place in places),
        n_expected=_sum(place.n_expected for place in places),
        n_replaced=sum(place.n_replaced for place in places),
        comparable=False if False in known else None if None in known else True,
        not_comparable_because=list(dict.fromkeys(why for one in provenances for why in one["not_comparable_because"])),
        awaiting_review=[text for row in rows for text in reviews(row)],
        benchmarks=benchmarks,
        places=places,
    )


def _why_none(places: list[Place], benchmarks: list[BenchmarkScore], part: str | None) -> str | None:
    """Why an agent's cells come to no number."""
    lacking = [f"{place.benchmark} x {place.model} ({place.unscored})" for place in places if place.mean is None]
    if lacking:
        return f"without a score: {', '.join(lacking)}"
    if part and len({frozenset(one.models) for one in benchmarks}) > 1:
        return "not every benchmark was planned with the same models"
    return None


def _place(benchmark: str, model: str, rows: list[Row]) -> Place:
    waiting = any(awaited(trial) for row in rows for trial in row.trials)
    repeats = [] if waiting else _repeats(rows)
    why = (
        AWAITS_REVIEW if waiting else "no run" if not rows else ", ".join(dict.fromkeys(map(str, map(unscored, rows))))
    )
    return Place(
        benchmark=benchmark,
        model=model,
        mean=statistics.fmean(repeats) if repeats else None,
        standard_error=statistics.stdev(repeats) / math.sqrt(len(repeats)) if len(repeats) > 1 else None,
        n_repeats=len(repeats),
        n_scored=sum(row.score["n_scored"] for row in rows),
        n_expected=_sum(row.score["n_expected"] for row in rows),
        n_replaced=sum(_replaced(row, trial) for row in rows for trial in row.trials),
        unscored=None if repeats else why,
        cells=[row.number for row in rows],
    )


def _repeats(rows: list[Row]) -> list[float]:
    """The final scores of the cells, or what each attempt counts as where there is one cell with one task."""
    if len(rows) != 1 or rows[0].score["final"] is None or len({trial.get("task") for trial in rows[0].trials}) != 1:
        return [row.score["final"] for row in rows if row.score["final"] is not None]
    values = [counted(rows[0], trial) for trial in rows[0].trials]
    return [value for value in values if value is not None]


def _replaced(row: Row, trial: dict[str, Any]) -> bool:
    return trial["outcome"] not in SCORED and counted(row, trial) is not None


def _benchmark_score(places: list[Place], weight: float) -> BenchmarkScore:
    means = [place.mean for place in places]
    return BenchmarkScore(
        benchmark=places[0].benchmark,
        weight=weight,
        mean=None if None in means else statistics.fmean(mean for mean in means if mean is not None),
        standard_error=_combined([(1 / len(places), place.standard_error) for place in places]),
        models=[place.model for place in places],
    )


def _weighted(benchmarks: list[BenchmarkScore]) -> tuple[float, float | None]:
    """The weighted mean over benchmarks, all of which have a mean, and its standard error."""
    total = math.fsum(one.weight for one in benchmarks)
    mean = math.fsum(one.weight / total * (one.mean or 0.0) for one in benchmarks)
    return mean, _combined([(one.weight / total, one.standard_error) for one in benchmarks])


def _combined(errors: list[tuple[float, float | None]]) -> float | None:
    """The standard error of a sum of independent terms, each with its factor; None where one is not known."""
    known = [factor * error for factor, error in errors if error is not None]
    return math.hypot(*known) if len(known) == len(errors) else None


def _between(places: list[Place], weights: dict[str, float]) -> tuple[float, float] | None:
    """What the score can still become: with 0 and with 1 where there is none; None when a finding awaits review."""
    if any(place.unscored == AWAITS_REVIEW for place in places):
        return None
    ends = []
    for end in (0.0, 1.0):
        filled = [replace(place, mean=end if place.mean is None else place.mean) for place in places]
        benchmarks = grouped(filled, lambda place: place.benchmark)
        ends.append(_weighted([_benchmark_score(alike, weights[name]) for name, alike in benchmarks.items()])[0])
    return ends[0], ends[1]


def _sum(values: Iterable[int | None]) -> int | None:
    """The sum; None when one is not known."""
    found = list(values)
    return None if None in found else sum(value for value in found if value is not None)
