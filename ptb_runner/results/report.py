"""`ptb report DIR`: everything about a sweep or a cell in one HTML file that needs nothing else.

The file asks the network for nothing, and its own policy forbids it to: whatever stands in the results is data,
escaped by Jinja, and no script but the report's own can run. The overview is plain HTML; a trial's page is kept
compressed and unpacked when it is opened, so that a thousand trials with their traces open at once.
"""

from __future__ import annotations

import base64
import contextlib
import datetime
import functools
import gzip
import hashlib
import os
import re
import shlex
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ptb_runner.explain import UsageError
from ptb_runner.outcome import SCORED
from ptb_runner.paths import TEMPLATES
from ptb_runner.results import overview, plots, trial_page
from ptb_runner.results.bundle import opened
from ptb_runner.results.leaderboard import points, ranges, rank, remarks
from ptb_runner.results.row import Row
from ptb_runner.results.rows import read_rows
from ptb_runner.results.scores import agent_scores, grouped, named
from ptb_runner.times import clock

if TYPE_CHECKING:
    import jinja2

HOME = TEMPLATES / "report"


@dataclass(frozen=True)
class Reported:
    """The report that was written, and what it is about."""

    path: Path
    size: int
    n_trials: int
    n_scored: int
    n_planned: int


# Passes things on, one by one, and may show how far it is.
type Track = Callable[[list[tuple[Row, dict[str, Any]]]], Iterable[tuple[Row, dict[str, Any]]]]


def report(folder: Path, path: Path, track: Track = iter) -> Reported:
    """Write the report of a folder, or of a bundle of one, to `path`; `track` sees each trial pass.

    Raises UsageError when the folder cannot be read or the file cannot be written.
    """
    place = opened(folder)
    rows = read_rows(place)
    totals = overview.totals(rows)
    title = "/".join(folder.resolve().parts[-2:])
    links_from = path.parent.resolve() if place == folder else None  # a bundle's files are nowhere to be linked to
    pages = _trial_pages(place, rows, links_from, track)
    html = _page(title, rows, totals, pages).encode(errors="backslashreplace")
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_bytes(html)
        temporary.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise UsageError(f"{path}: cannot be written: {error.strerror}") from None
    return Reported(path, len(html), totals["n_trials"], totals["n_scored"], totals["n_planned"])


def _page(title: str, rows: list[Row], totals: dict[str, Any], pages: dict[str, str]) -> str:
    style = _minified((HOME / "report.css").read_text()) + _colours()
    script = (HOME / "report.js").read_text()
    scores, outcomes = overview.scores(rows), overview.outcomes(rows)
    return _template("report.html.j2").render(
        title=title,
        totals=totals,
        style=style,
        script=script,
        style_hash=_hash(style),
        script_hash=_hash(script),
        caveats=overview.caveats(rows),
        weighted=sorted(agent_scores(rows), key=rank),
        scores=scores,
        board=_board(scores),
        figures=_figures(rows, totals),
        spending=overview.spending(rows),
        outcomes=outcomes,
        used_outcomes=[name for name in plots.OUTCOMES if any(one["counts"][name] for one in outcomes)],
        errors=overview.errors(rows),
        rows=rows,
        pages=pages,
        provenance=_provenance(rows),
        level=f"{overview.LEVEL:.0%}",
    )


def _figures(rows: list[Row], totals: dict[str, Any]) -> dict[str, Any]:
    agents, benchmarks = plots.series_of(totals["agents"]), plots.series_of(totals["benchmarks"])
    return {
        "agents": agents,
        "benchmarks": benchmarks,
        "scores": plots.score_panels(overview.scores(rows), agents),
        "attempts": plots.attempt_panels(rows, agents),
        "time": plots.time_panel(overview.spending(rows)),
        "money": plots.money_panel(rows, benchmarks),
        "outcomes": plots.outcome_panel(overview.outcomes(rows)),
    }


def _board(scores: list[overview.Score]) -> dict[str, Any]:
    """Agents and models x benchmarks: the scores in each place, none or several."""
    benchmarks = list(dict.fromkeys(one.entry["benchmark"] for one in scores))
    lines = []
    for (agent, model), own in grouped(scores, lambda one: (one.entry["agent"], one.entry["model"])).items():
        places = [[one for one in own if one.entry["benchmark"] == name] for name in benchmarks]
        lines.append({"agent": agent, "model": model, "places": places})
    notes = list(dict.fromkeys(note for one in scores for note in one.entry["notes"]))
    return {"benchmarks": benchmarks, "lines": lines, "notes": notes}


def _trial_pages(folder: Path, rows: list[Row], links_from: Path | None, track: Track) -> dict[str, str]:
    """Each trial's page, compressed, by the trial's key."""
    pairs = [(row, trial) for row in rows for trial in row.trials]
    room = trial_page.room(len(pairs))
    return {overview.key_of(*pair): _packed(_trial_page(folder, *pair, links_from, room)) for pair in track(pairs)}


def _trial_page(folder: Path, row: Row, trial: dict[str, Any], links_from: Path | None, room: int) -> str:
    place = trial_page.trial_folder(folder, row, trial)
    return _template("trial.html.j2").render(
        row=row,
        trial=trial_page.whole(trial),
        command=f"ptb trace DIR {shlex.quote(trial['name'] if row.folder == '.' else overview.key_of(row, trial))}",
        place=place,
        trace=trial_page.excerpt(place, room) if place else None,
        files=trial_page.files(place, links_from) if place else [],
        tails=list(trial_page.tails(place)) if place else [],
        most_files=trial_page.MOST_FILES,
        most_values=trial_page.MOST_VALUES,
    )


def _packed(html: str) -> str:
    return base64.b64encode(gzip.compress(html.encode(errors="backslashreplace"), mtime=0)).decode()


def _provenance(rows: list[Row]) -> list[dict[str, Any]]:
    """What the cells were made with: a table for each set of cells for which it is the same."""
    groups = grouped(rows, lambda row: tuple(_made_with(row)))
    return [{"cells": [row.number for row in own], "values": values} for values, own in groups.items() if values]


def _made_with(row: Row) -> list[tuple[str, str]]:
    """All of a cell's provenance but what is each cell's own: its task's checksums and its overrides."""
    own = ("task_sha256", "task_checksum", "task_checksums", "overrides", "not_comparable_because")
    known = {key: value for key, value in row.result["provenance"].items() if key not in own}
    return [*trial_page.flat(known)] if row.trials else []


# --- Templates ----------------------------------------------------------------------------------------


@functools.cache
def _environment() -> jinja2.Environment:
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(HOME),
        undefined=jinja2.StrictUndefined,
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "clock": clock,
        "when": _when,
        "number": _number,
        "compact": _compact,
        "bytes": _bytes,
        "flat": lambda value: list(trial_page.flat(value)),
        "ranges": ranges,
        "whole": trial_page.whole,
        "without": lambda table, name: {key: value for key, value in table.items() if key != name},
    }
    environment.globals |= {
        "named": named,
        "points": points,
        "remarks": remarks,
        "key_of": overview.key_of,
        "SCORED": SCORED,
        "SIGNS": "●■▲◆▼✚✖★",  # plots.MARKERS as letters
        "PHASES": overview.PHASES,
        "OUTCOMES": list(plots.OUTCOMES),
    }
    return environment


def _template(name: str) -> jinja2.Template:
    return _environment().get_template(name)


def _number(value: float | None, digits: int = 4) -> str:
    return "–" if value is None else f"{value:,.{digits}f}"  # noqa: RUF001 - a dash as wide as a figure


def _compact(value: float | None) -> str:
    """A count in at most five characters."""
    if value is None:
        return "–"  # noqa: RUF001
    for unit, name in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= unit:
            return f"{value / unit:.1f}{name}"
    return f"{value:.0f}"


def _when(time: str | None) -> str:
    """A time of a record to the second, in UTC."""
    try:
        at = datetime.datetime.fromisoformat(time or "")
    except ValueError:
        return time or "–"  # noqa: RUF001
    return f"{at.astimezone(datetime.UTC):%Y-%m-%d %H:%M:%S}" if at.tzinfo else f"{at:%Y-%m-%d %H:%M:%S}"


def _bytes(size: int) -> str:
    return f"{size} B" if size < 1000 else f"{_compact(size)}B"


def _colours() -> str:
    """Rules that give each colour of the plots the value of the style sheet's variable of the same name."""
    named = {"ink": plots.INK, "muted": plots.MUTED, "rule": plots.RULE}
    named |= {f"s{number}": colour for number, colour in enumerate(plots.SERIES)} | plots.OUTCOMES
    named |= {f"phase-{phase}": colour for phase, colour in plots.PHASE_COLOURS.items()}
    rules = [
        f'.plot [fill="{colour}"]{{fill:var(--{name})}}.plot [stroke="{colour}"]{{stroke:var(--{name})}}'
        f".is-{name}{{color:var(--{name})}}"
        for name, colour in named.items()
    ]
    return "".join(rules)


def _minified(style: str) -> str:
    return re.sub(r"\s*\n\s*", "\n", style)


def _hash(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
