"""The leaderboard: scores by agent, model and benchmark, as data and as a page.

Two rules keep it honest: cells without a score are shown with the reason and are in no mean, and cells that are not
alike (another LLM or limit of the agent, not comparable, scores of another source) are never put into one number.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from typing import Any

from ptb_runner.results.row import Row
from ptb_runner.results.scores import AgentScore, grouped, named, reviews, unscored

MOST_DIFFERENCES = 20  # overrides that the page lists as averaged over; metrics.json has all


def standings(rows: list[Row]) -> list[dict[str, Any]]:
    """The numbers of the leaderboard, in the order of the cells.

    `mean` is the mean of the final scores of `n_cells` cells, `standard_error` the sample standard deviation over
    the root of their number, from two cells on. Where the cells have no score both are None and `unscored` says why.
    """
    groups = grouped(rows, lambda row: (*_place(row), unscored(row), _notes(row)))
    return [_standing(alike, *key) for key, alike in groups.items()]


def _place(row: Row) -> tuple[str, str, str]:
    return named(row, "agent"), named(row, "model"), named(row, "benchmark")


def _notes(row: Row) -> tuple[str, ...]:
    """What a reader must know about a cell's score before comparing it."""
    provenance, source = row.result["provenance"], row.score["final_source"]
    found = []
    if provenance["comparable"] is False:
        found.append(f"not comparable: {'; '.join(provenance['not_comparable_because'])}")
    if row.trials and provenance["comparable"] is None:
        found.append("not known whether comparable: no cell's own result says so")
    if source not in (None, "verifier"):
        found.append(f"{source}: a trial without a usable model counts as the base model's zero-shot score")
    if reviews(row):
        found.append("a judge's finding awaits review, and there is no weighted score until then")
    return tuple(found)


def _standing(
    rows: list[Row], agent: str, model: str, benchmark: str, unscored: str | None, notes: tuple[str, ...]
) -> dict[str, Any]:
    finals = [] if unscored else [row.score["final"] for row in rows]
    expected = [row.score["n_expected"] for row in rows]
    counts = Counter(text for row in rows for text in dict.fromkeys(row.overrides))
    return {
        "agent": agent,
        "model": model,
        "benchmark": benchmark,
        "mean": statistics.fmean(finals) if finals else None,
        "standard_error": statistics.stdev(finals) / math.sqrt(len(finals)) if len(finals) > 1 else None,
        "n_cells": len(rows),
        "n_scored": sum(row.score["n_scored"] for row in rows),
        "n_expected": None if None in expected else sum(expected),
        "unscored": unscored,
        "comparable": rows[0].result["provenance"]["comparable"],
        "notes": list(notes),
        "cells": [row.number for row in rows],
        "differ_in": [text for text, count in counts.items() if count < len(rows)],
    }


# --- The page -----------------------------------------------------------------------------------------

_ABOUT = """\
# Leaderboard

{headline}

Final scores from 0 to 1, each with its coverage: (scored trials/planned trials). Several cells of one agent, model and
benchmark, such as seeds, are shown as mean ± standard error (sample standard deviation / √n) over n cells. `-` is a
cell without a score, with the reason; it is in no mean. Empty: not in this sweep. Overrides of the agent, the model or
the benchmark stand beside their names, and make them others.
"""


def page(entries: list[dict[str, Any]], weighted: list[AgentScore], problems: list[str], headline: str) -> str:
    """leaderboard.md: weighted scores, a table an agent, then what was not collected, then the footnotes."""
    parts = [_ABOUT.format(headline=headline), _weighted(weighted)]
    notes = list(dict.fromkeys(note for entry in entries for note in entry["notes"]))
    for agent, own in grouped(entries, lambda entry: entry["agent"]).items():
        parts.append(f"\n## {_escaped(agent)}\n\n{_table(own, notes)}{_differences(own)}")
    if problems:
        listed = "".join(f"- {_escaped(problem)}\n" for problem in problems)
        parts.append(f"\n## Not collected\n\nWhat could not be read or is not over, in whole or in part:\n\n{listed}")
    for number, note in enumerate(notes, 1):
        cells = sorted(cell for entry in entries if note in entry["notes"] for cell in entry["cells"])
        which = f"cell{'s' if len(cells) > 1 else ''} {ranges(cells)}"
        parts.append(f"\n[^{number}]: {_escaped(note)} ({which})\n")
    return "".join(parts)


_ABOUT_WEIGHTED = """
## Weighted scores

Of 100: the weighted mean over benchmarks of the mean over models, ± its standard error over repeats, where each place
(a benchmark and a model) has two or more. Only where every place has a score is there one.
"""


def _weighted(scores: list[AgentScore]) -> str:
    """The table of weighted scores; nothing where no benchmark has a weight."""
    if not scores:
        return ""
    head = ("agent", "score", "repeats", "places", "trials", "")
    lines = [head, ("---", "---:", "---:", "---:", "---:", "---")]
    for one in sorted(scores, key=rank):
        places = f"{one.n_places_scored}/{one.n_places}"
        trials = f"{one.n_scored}/{'?' if one.n_expected is None else one.n_expected}"
        lines.append(
            (_escaped(one.agent), points(one), str(one.n_repeats), places, trials, _escaped("; ".join(remarks(one))))
        )
    return _ABOUT_WEIGHTED + "\n" + "".join(f"| {' | '.join(line)} |\n" for line in lines)


def rank(one: AgentScore) -> tuple[bool, float]:
    """Sorts the best first and those without a score last."""
    mean = one.score if one.partial is None else one.partial
    return mean is None, -(mean or 0.0)


def points(one: AgentScore) -> str:
    """A weighted score of 100, with its standard error."""
    mean = one.score if one.partial is None else one.partial
    if mean is None:
        return "-"
    return f"{100 * mean:.2f}" + ("" if one.standard_error is None else f" ± {100 * one.standard_error:.2f}")


def remarks(one: AgentScore) -> list[str]:
    """What a reader must know beside a weighted score."""
    found = [one.why_none] if one.why_none else []
    if one.between:
        found.append("between {:.2f} and {:.2f} once all have one".format(*(100 * end for end in one.between)))
    if one.part:
        found.append(f"not the whole: only {one.part}")
    if one.comparable is False:
        found.append("not comparable: see the footnotes")
    if one.n_replaced:
        found.append(f"{one.n_replaced} {'trial counts' if one.n_replaced == 1 else 'trials count'} as the base model")
    if one.awaiting_review:
        found.append(f"awaits review: {', '.join(one.awaiting_review)} (next: ptb review DIR CELL)")
    return found


def ranges(numbers: list[int]) -> str:
    """Ascending numbers as 0-3, 7."""
    runs = grouped(enumerate(numbers), lambda pair: pair[1] - pair[0]).values()  # equal along a run without gaps
    ends = [(run[0][1], run[-1][1]) for run in runs]
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in ends)


def _escaped(text: str) -> str:
    return " ".join(text.split()).replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;")


def _table(entries: list[dict[str, Any]], notes: list[str]) -> str:
    """Models x benchmarks of one agent."""
    benchmarks = list(dict.fromkeys(entry["benchmark"] for entry in entries))
    lines = [["model", *map(_escaped, benchmarks)], ["---", *("---:" for _ in benchmarks)]]
    for model, own in grouped(entries, lambda entry: entry["model"]).items():
        places = grouped(own, lambda entry: entry["benchmark"])
        texts = ["; ".join(_figure(entry, notes) for entry in places.get(name, [])) for name in benchmarks]
        lines.append([_escaped(model), *texts])
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _figure(entry: dict[str, Any], notes: list[str]) -> str:
    n, expected = entry["n_cells"], entry["n_expected"]
    coverage = f"{entry['n_scored']}/{'?' if expected is None else expected}"
    marks = "".join(f"[^{notes.index(note) + 1}]" for note in entry["notes"])
    if entry["unscored"]:
        return f"- ({f'{n} cells ' if n > 1 else ''}{_escaped(entry['unscored'])}, {coverage}){marks}"
    error = f" ± {entry['standard_error']:.4f}, n={n}" if n > 1 else ""
    return f"{entry['mean']:.4f}{error} ({coverage}){marks}"


def _differences(entries: list[dict[str, Any]]) -> str:
    """The overrides in which the cells of one mean differ."""
    found = list(dict.fromkeys(text for entry in entries if not entry["unscored"] for text in entry["differ_in"]))
    more = [f"and {len(found) - MOST_DIFFERENCES} more"] if len(found) > MOST_DIFFERENCES else []
    listed = ", ".join([*map(_escaped, found[:MOST_DIFFERENCES]), *more])
    return f"\nCells of one mean differ in: {listed}\n" if found else ""
