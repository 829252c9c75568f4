"""Compare two sides: the difference between them, how sure it is, and a verdict that claims no more than that.

A difference is that of the second side to the first one. Units are tasks (their attempts averaged) or, where there is
one task or it is asked for, attempts, with the tasks taken as given. Where all benchmarks have weights the difference
is weighted as scores are.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal

from ptb_runner.config import BenchmarkConfig
from ptb_runner.explain import UsageError
from ptb_runner.results.evidence import Evidence, bootstrap, detectable, evidence
from ptb_runner.results.pairs import Pair, Paired, Side, Value, pair
from ptb_runner.results.row import Row
from ptb_runner.results.scores import counted, grouped, reviews, weight

Verdict = Literal["better", "worse", "equivalent", "no difference shown", "inconclusive"]
Over = Literal["tasks", "attempts"]
Metric = Literal["score", "pass"]


@dataclass(frozen=True)
class Rules:
    """How to compare. `alpha` is that of one verdict: of several at once each gets its share of 1 - confidence."""

    confidence: float = 0.95
    verdicts: int = 1
    margin: float | None = None
    over: Over | None = None  # None: tasks, or attempts where there is one task
    metric: Metric = "score"

    @property
    def alpha(self) -> float:
        return (1 - self.confidence) / self.verdicts


@dataclass(frozen=True)
class Difference:
    """What some pairs say. `interval` is at 1 - alpha; an end that is None is open, for so few units."""

    n_units: int
    over: Over
    weighted: bool
    pass_fail: bool
    mcnemar: bool
    mean_a: float
    mean_b: float
    estimate: float
    interval: tuple[float | None, float | None]
    bootstrap: tuple[float, float] | None
    p: float
    p_equivalent: float | None
    detectable: float | None


@dataclass(frozen=True)
class Comparison:
    """One side against another: the verdict on the second one, why, and what it rests on."""

    a: Side
    b: Side
    rules: Rules
    verdict: Verdict
    why: list[str]
    difference: Difference | None
    paired: Paired
    n_complete: int
    n_missing_a: int
    n_missing_b: int
    n_missing_both: int
    gained: list[Pair]
    lost: list[Pair]

    @property
    def verdict_text(self) -> str:
        """The verdict with what it is about."""
        return f"equivalent within ±{self.rules.margin:g}" if self.verdict == "equivalent" else self.verdict


def compare(a: Side, b: Side, rules: Rules) -> Comparison:
    """Compare `b` with `a`."""
    paired = pair(a.rows, b.rows, _values(rules.metric))
    check_scale("margin", rules.margin, paired.pairs)
    weights = _weights([*a.rows, *b.rows], paired.pairs)
    filled = functools.partial(_units, paired.pairs, weights, rules)
    units = filled()
    verdict, why = _verdict(units, filled, rules, [*a.rows, *b.rows], paired.pairs)
    missing = [(one.a.value is None, one.b.value is None) for one in paired.pairs]
    limits = {row.benchmark: _pass_reward(row) for row in [*a.rows, *b.rows]}
    passed = [(*_passed(one, limits[one.benchmark]), one) for one in paired.pairs]
    return Comparison(
        a=a,
        b=b,
        rules=rules,
        verdict=verdict,
        why=why,
        difference=_difference(units, weights is not None, rules),
        paired=paired,
        n_complete=missing.count((False, False)),
        n_missing_a=missing.count((True, False)),
        n_missing_b=missing.count((False, True)),
        n_missing_both=missing.count((True, True)),
        gained=[one for before, after, one in passed if after and before is False],
        lost=[one for before, after, one in passed if before and after is False],
    )


def check_scale(what: str, difference: float | None, pairs: list[Pair]) -> None:
    """Refuse a difference that no two scores here can have, which everything would be within: points of 100."""
    known = [value for one in pairs for value in (one.a.value, one.b.value) if value is not None]
    if difference is not None and difference > 1 and all(0 <= value <= 1 for value in known):
        raise UsageError(
            f"{what} {difference:g}: scores here are from 0 to 1, all differences are within it\n"
            f"  {difference:g} points of 100 are {difference / 100:g}"
        )


def units_of(found: Comparison, pairs: list[Pair]) -> Units:
    """Some of a comparison's pairs, as it takes them."""
    return _units(pairs, _weights([*found.a.rows, *found.b.rows], pairs), found.rules)


# --- From pairs to units ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Units:
    """Differences with their weights, and what each is about."""

    differences: list[float]
    weights: list[float]
    over: Over
    pass_fail: bool
    mean_a: float
    mean_b: float

    @functools.cached_property
    def evidence(self) -> Evidence | None:
        return evidence(self.differences, self.weights, self.pass_fail) if self.differences else None


def _values(metric: Metric) -> Value:
    """What a trial counts as in this comparison."""

    def passes(row: Row, trial: dict[str, Any]) -> float | None:
        value = counted(row, trial)
        return None if value is None else float(value >= _pass_reward(row))

    return counted if metric == "score" else passes


def _pass_reward(row: Row) -> float:
    return row.benchmark_options.get("pass_reward", BenchmarkConfig.pass_reward)


def _passed(one: Pair, limit: float) -> tuple[bool | None, bool | None]:
    before, after = (None if half.value is None else half.value >= limit for half in (one.a, one.b))
    return before, after


def _weights(rows: list[Row], pairs: list[Pair]) -> dict[str, float] | None:
    """The weight of each compared benchmark; None unless all have one."""
    known = {row.benchmark: weight(row) for row in rows}
    compared = {one.benchmark: known[one.benchmark] for one in pairs}
    found = {name: value for name, value in compared.items() if value is not None}
    return found if found and len(found) == len(compared) else None


def _units(pairs: list[Pair], weights: dict[str, float] | None, rules: Rules, missing: float | None = None) -> Units:
    """The units of complete pairs. With `missing` = -1 or 1 half pairs count, too: all against `b`, or all for it."""
    known = [value for one in pairs for value in (one.a.value, one.b.value) if value is not None]
    least, most = min([0.0, *known]), max([1.0, *known])
    worst, best = (least, most) if missing == 1 else (most, least)  # what stands in for a; the other one for b
    filled = [
        (one, worst if one.a.value is None else one.a.value, best if one.b.value is None else one.b.value)
        for one in pairs
        if one.difference is not None or (missing is not None and (one.a.value is None) != (one.b.value is None))
    ]
    by_task = grouped(filled, lambda one: (one[0].benchmark, one[0].model, one[0].task))
    over: Over = rules.over or ("tasks" if len(by_task) > 1 else "attempts")
    n_models = {name: len({model for b, model, _ in by_task if b == name}) for name, _, _ in by_task}
    n_tasks = grouped(by_task, lambda key: key[:2])
    units: list[tuple[float, float, float]] = []
    for key, own in by_task.items():
        share = 1.0 if weights is None else weights[key[0]] / n_models[key[0]] / len(n_tasks[key[:2]])
        befores, afters = [before for _, before, _ in own], [after for _, _, after in own]
        if over == "tasks":
            units.append((_mean(befores), _mean(afters), share))
        else:
            units += [(before, after, share / len(own)) for before, after in zip(befores, afters, strict=True)]
    total = sum(share for _, _, share in units) or 1.0
    return Units(
        differences=[after - before for before, after, _ in units],
        weights=[share for _, _, share in units],
        over=over,
        pass_fail=set(known) <= {0.0, 1.0},
        mean_a=sum(before * share for before, _, share in units) / total,
        mean_b=sum(after * share for _, after, share in units) / total,
    )


def _mean(values: Iterable[float]) -> float:
    found = list(values)
    return sum(found) / len(found)


def _difference(units: Units, weighted: bool, rules: Rules) -> Difference | None:
    found = units.evidence
    if found is None:
        return None
    shown = (units.differences, units.weights)
    return Difference(
        n_units=found.n,
        over=units.over,
        weighted=weighted,
        pass_fail=units.pass_fail,
        mcnemar=found.mcnemar,
        mean_a=units.mean_a,
        mean_b=units.mean_b,
        estimate=found.estimate,
        interval=found.interval(rules.alpha),
        bootstrap=bootstrap(*shown, rules.alpha),
        p=found.p,
        p_equivalent=None if rules.margin is None else found.p_equivalent(rules.margin),
        detectable=detectable(*shown, units.pass_fail, rules.alpha),
    )


# --- The verdict --------------------------------------------------------------------------------------


def _verdict(
    units: Units, filled: Callable[..., Units], rules: Rules, rows: list[Row], pairs: list[Pair]
) -> tuple[Verdict, list[str]]:
    """The verdict on the second side, and why it is withheld or not more; `filled` gives units without gaps."""
    waiting = [text for row in rows for text in reviews(row)]
    if waiting:
        return "inconclusive", [f"a judge's finding awaits review: {'; '.join(waiting)} (next: ptb review DIR CELL)"]
    if not any(one.difference is not None for one in pairs):
        return "inconclusive", ["no trial has a value on both sides"]
    verdict, why = _of(units, rules)
    halves = sum((one.a.value is None) != (one.b.value is None) for one in pairs)
    if halves:
        could_be = {_of(filled(missing=end), rules)[0] for end in (-1.0, 1.0)} - {verdict}
        if could_be:
            other = " or ".join(sorted(could_be))
            return "inconclusive", [
                f"{halves} of {len(pairs)} pairs have a value on one side only; "
                f"what is there says {verdict!r}, but with what is missing it could be {other!r}",
                *why,
            ]
    return verdict, why


def _of(units: Units, rules: Rules) -> tuple[Verdict, list[str]]:
    found = units.evidence
    if found is None:
        return "inconclusive", ["no trial has a value on both sides"]
    if rules.margin is not None and found.p_equivalent(rules.margin) <= rules.alpha:
        also = [f"a difference is shown, and it is within ±{rules.margin:g}"] if found.p <= rules.alpha else []
        return "equivalent", also
    if found.p <= rules.alpha:
        return ("better" if found.estimate > 0 else "worse"), []
    if found.smallest_p > rules.alpha:
        needed = next(n for n in range(1, 100) if 2.0 ** (1 - n) <= rules.alpha)
        few = f"{found.n} {units.over if found.n > 1 else units.over[:-1]}"
        return "inconclusive", [f"{few} cannot show a difference, it takes {needed} or more"]
    return "no difference shown", ["which is no sign that there is none"]
