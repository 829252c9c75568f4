"""What a report says of all cells together: the caveats, the spending, the outcomes and the errors, as plain data."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from ptb_runner.outcome import SCORED, UNSCORABLE, Outcome
from ptb_runner.results.leaderboard import standings
from ptb_runner.results.row import Row
from ptb_runner.results.rows import ENDED
from ptb_runner.results.scores import grouped, named, reviews

LEVEL = 0.95  # of every interval
PHASES: tuple[str, ...] = ("environment", "agent", "verifier")
TOKENS = ("input", "cached", "output")
_TRIALS_NAMED = 200  # of those with the same error; the rest are found by the filter


@dataclass(frozen=True)
class Caveat:
    """What a reader must know before believing a number; `query` filters the trials that it is about."""

    text: str
    details: list[str]
    query: str = ""


def key_of(row: Row, trial: dict[str, Any]) -> str:
    """What a trial is called in the report and in its links."""
    return f"{row.number}/{trial['name']}"


def totals(rows: list[Row]) -> dict[str, Any]:
    """How much there is, and how much of it is scored."""
    planned = [row.score["n_expected"] for row in rows]
    n_scored, n_planned = sum(row.score["n_scored"] for row in rows), sum(one or 0 for one in planned)
    return {
        "n_cells": len(rows),
        "n_trials": sum(len(row.trials) for row in rows),
        "n_scored": n_scored,
        "n_planned": n_planned,
        "share": n_scored / n_planned if n_planned else None,
        "agents": list(dict.fromkeys(named(row, "agent") for row in rows)),
        "models": list(dict.fromkeys(row.model for row in rows)),
        "benchmarks": list(dict.fromkeys(row.benchmark for row in rows)),
        "backends": list(dict.fromkeys(row.backend for row in rows)),
        "started_at": min((at for row in rows if (at := row.result.get("started_at"))), default=None),
        "finished_at": max((at for row in rows if (at := row.result.get("finished_at"))), default=None),
    }


# --- Caveats ------------------------------------------------------------------------------------------


def caveats(rows: list[Row]) -> list[Caveat]:
    """All of them, those that weigh most first."""
    return [*_reviews(rows), *_coverage(rows), *_not_over(rows), *_comparable(rows), *_replaced(rows), *_unknown(rows)]


def _reviews(rows: list[Row]) -> Iterator[Caveat]:
    if waiting := [text for row in rows for text in reviews(row)]:
        verb = "awaits" if len(waiting) == 1 else "await"
        yield Caveat(f"{_count(len(waiting), 'trial')} {verb} a person's review, given with ptb review", waiting)


def _coverage(rows: list[Row]) -> Iterator[Caveat]:
    for outcome in Outcome:
        found = [one for row in rows for one in row.trials if one["outcome"] == outcome and outcome not in SCORED]
        if found:
            verb = "is" if len(found) == 1 else "are"
            yield Caveat(f"{_count(len(found), 'trial')} {verb} not scored: {outcome}", [], f"outcome={outcome}")


def _not_over(rows: list[Row]) -> Iterator[Caveat]:
    for state, own in grouped((row for row in rows if row.state != "finished"), lambda row: row.state).items():
        yield Caveat(
            f"{_count(len(own), 'cell')} {'is' if len(own) == 1 else 'are'} {state}: what is missing is in no mean",
            [_named(row) for row in own],
        )
    problems = [f"cell {row.number}: {problem}" for row in rows for problem in row.problems]
    if problems:
        yield Caveat(f"{_count(len(problems), 'thing')} could not be read in whole, or not yet", problems)


def _comparable(rows: list[Row]) -> Iterator[Caveat]:
    own = [row for row in rows if row.result["provenance"]["comparable"] is False]
    if own:
        verb = "is" if len(own) == 1 else "are"
        yield Caveat(
            f"{_count(len(own), 'cell')} {verb} not comparable with the benchmark's own results",
            [f"{_named(row)}: {'; '.join(row.result['provenance']['not_comparable_because'])}" for row in own],
        )
    commits = {str((row.result["provenance"].get("git") or {}).get("commit")) for row in rows if row.trials}
    if len(commits) > 1:
        yield Caveat("the cells were run by different commits of ptb_runner", sorted(commits))
    if any((row.result["provenance"].get("git") or {}).get("dirty") for row in rows):
        yield Caveat("some cells were run by code that was changed after its commit", [])


def _replaced(rows: list[Row]) -> Iterator[Caveat]:
    own = [row for row in rows if row.score["final_source"] in ("mixed", "base_model_zero_shot")]
    count = sum(trial["outcome"] in UNSCORABLE for row in own for trial in row.trials)
    if own:
        verb = "counts" if count == 1 else "count"
        yield Caveat(
            f"{_count(count, 'trial')} without a usable model {verb} as the base model's zero-shot score",
            [_named(row) for row in own],
        )


def _unknown(rows: list[Row]) -> Iterator[Caveat]:
    trials = [trial for row in rows for trial in row.trials]
    alone = [row for row in rows if row.score["n_scored"] == 1]
    if alone:
        verb = "rests" if len(alone) == 1 else "rest"
        yield Caveat(f"{_count(len(alone), 'score')} {verb} on a single trial", [_named(row) for row in alone])
    costless = [trial for trial in trials if trial["cost_usd"] is None]
    if costless and len(costless) < len(trials):
        yield Caveat(
            f"{_count(len(costless), 'trial')} of {len(trials)} report no cost: sums of money leave them out", []
        )
    for flag, count in Counter(flag for trial in trials for flag in trial["flags"]).items():
        if flag.startswith("review_awaiting:"):
            continue  # told first of all
        yield Caveat(f"{_count(count, 'trial')} marked {flag}", [], f"q={quote(flag, safe='')}")


def _named(row: Row) -> str:
    return f"cell {row.number}: {row.benchmark} x {row.model} x {row.agent}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


# --- Scores with intervals ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Score:
    """An entry of the leaderboard with what stands behind it: the mean reward over scored trials, and its interval."""

    entry: dict[str, Any]
    n_rewards: int
    raw: float | None
    interval: Interval | None
    base: float | None  # what the benchmark's file says of the model before the agent's work


def scores(rows: list[Row]) -> list[Score]:
    """The leaderboard's numbers, with intervals over all trials of the cells that are one entry."""
    by_number = {row.number: row for row in rows}
    found = []
    for entry in standings(rows):
        cells = [by_number[number] for number in entry["cells"]]
        own = [trial for row in cells for trial in row.trials if trial["outcome"] in SCORED]
        raw = statistics.fmean(trial["reward"] for trial in own) if own else None
        found.append(Score(entry, len(own), raw, interval(own), _base(cells[0])))
    return found


def _base(row: Row) -> float | None:
    return row.benchmark_options.get("zero_shot", {}).get(row.model)


@dataclass(frozen=True)
class Interval:
    """A confidence interval of a mean, and what it is over: trials, or the items of the test."""

    low: float
    high: float
    over: str


def interval(trials: list[dict[str, Any]]) -> Interval | None:
    """The interval of the mean reward over trials that are alike; None when nothing speaks of its width.

    Over trials it is Student's t, or Wilson's where every reward is 0 or 1. A single trial has the standard error
    that its verifier reports, if it does: that of the test's items, not of the agent's luck.
    """
    scored = [trial for trial in trials if trial["outcome"] in SCORED]
    rewards = [trial["reward"] for trial in scored]
    if len(rewards) > 1:
        over = f"{len(rewards)} trials"
        if len(set(rewards)) == 1 and rewards[0] not in (0.0, 1.0):
            return None  # equal rewards do not show that there is no spread
        return Interval(*(_wilson(rewards) if set(rewards) <= {0.0, 1.0} else _student(rewards)), over)
    error = _stderr(scored[0]) if scored else None
    if error is None:
        return None
    half = statistics.NormalDist().inv_cdf((1 + LEVEL) / 2) * error
    return Interval(rewards[0] - half, rewards[0] + half, "test items")


def _stderr(trial: dict[str, Any]) -> float | None:
    metrics = trial.get("metrics")
    value: Any = metrics.get("stderr") if isinstance(metrics, dict) else None
    return value if isinstance(value, float) and 0 < value < 1 else None


def _student(values: list[float]) -> tuple[float, float]:
    from scipy.special import stdtrit  # scipy.stats takes a second to import

    mean, error = statistics.fmean(values), statistics.stdev(values) / math.sqrt(len(values))
    half = float(stdtrit(len(values) - 1, (1 + LEVEL) / 2)) * error
    return mean - half, mean + half


def _wilson(values: list[float]) -> tuple[float, float]:
    z, n, share = statistics.NormalDist().inv_cdf((1 + LEVEL) / 2), len(values), statistics.fmean(values)
    middle = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    return max(0.0, middle - half), min(1.0, middle + half)


# --- Time, money, outcomes, errors --------------------------------------------------------------------


def spending(rows: list[Row]) -> list[dict[str, Any]]:
    """Hours by phase, GPU-hours, tokens and dollars of each agent and model: sums over the trials that report them."""
    found = []
    for (agent, model), own in grouped(rows, lambda row: (named(row, "agent"), row.model)).items():
        trials = [trial for row in own for trial in row.trials]
        scored = sum(trial["outcome"] in SCORED for trial in trials)
        cost = total(trial["cost_usd"] for trial in trials)
        hours = {phase: _hours(trials, phase) for phase in PHASES}
        found.append(
            {
                "agent": agent,
                "model": model,
                "n_trials": len(trials),
                "hours": hours,
                "total_hours": total(hours.values()),
                "gpu_hours": total(_gpu_hours(row) for row in own),
                "server_gpu_hours": total(row.server_gpu_hours for row in own),
                "tokens": {kind: total(trial["tokens"][kind] for trial in trials) for kind in TOKENS},
                "cost_usd": cost,
                "judges_usd": total(trial.get("judge_cost_usd") for trial in trials),
                "cost_per_scored": cost / scored if cost is not None and scored else None,
            }
        )
    return found


def total(values: Iterable[float | None]) -> float | None:
    """The sum of what is known; None when nothing is."""
    known = [value for value in values if value is not None]
    return math.fsum(known) if known else None


def _hours(trials: list[dict[str, Any]], phase: str) -> float | None:
    seconds = total(trial["durations_sec"][phase] for trial in trials)
    return None if seconds is None else seconds / 3600


def _gpu_hours(row: Row) -> float | None:
    hours = total(_hours(row.trials, phase) for phase in PHASES)
    return None if hours is None or row.gpus is None else row.gpus * hours


def outcomes(rows: list[Row]) -> list[dict[str, Any]]:
    """How many trials of each agent came to what; `missing` are planned trials that have no record."""
    found = []
    for agent, own in grouped(rows, lambda row: named(row, "agent")).items():
        counts = Counter(trial["outcome"] for row in own for trial in row.trials)
        planned = sum(row.score["n_expected"] or 0 for row in own)
        counted = {str(outcome): counts.get(str(outcome), 0) for outcome in Outcome}
        missing = max(0, planned - sum(counts.values()))
        found.append({"agent": agent, "counts": counted | {"missing": missing}, "planned": planned})
    return found


def errors(rows: list[Row]) -> list[dict[str, Any]]:
    """Error texts, the most frequent first, with the trials that met them; runners' own errors are among them."""
    pairs = [(row, trial) for row in rows for trial in row.trials if trial["error"]]
    groups = grouped(pairs, lambda pair: (pair[1]["outcome"], pair[1]["error"]["type"], pair[1]["error"]["message"]))
    found = [
        {
            "outcome": outcome,
            "type": kind,
            "message": message,
            "phases": sorted({str(trial["error"].get("phase") or "-") for _, trial in own}),
            "n": len(own),
            "keys": [key_of(row, trial) for row, trial in own[:_TRIALS_NAMED]],
        }
        for (outcome, kind, message), own in groups.items()
    ]
    for row in rows:
        if row.runner_error and row.state not in (*ENDED, "running"):
            one = {"outcome": row.state, "type": f"the runner of cell {row.number}", "message": row.runner_error}
            found.append(one | {"phases": ["-"], "n": 1, "keys": []})
    return sorted(found, key=lambda one: -one["n"])
