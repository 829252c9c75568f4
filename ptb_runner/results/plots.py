"""The report's plots, drawn by matplotlib into small SVG panels that a page lays out and colours.

Each panel is as wide as a phone, so that none is ever scaled. Colours are written as they are on a light page; the
page's style sheet names the same ones and gives them another value in the dark. What a panel shows stands in a table
beside it, so it is hidden from screen readers, and its links are no stops for the Tab key.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from ptb_runner.outcome import SCORED
from ptb_runner.results.overview import PHASES, Score, key_of
from ptb_runner.results.row import Row
from ptb_runner.results.scores import grouped, named

INK, MUTED, RULE = "#1b1f24", "#59636e", "#d1d9e0"
SERIES = ["#0969da", "#bc4c00", "#1a7f37", "#8250df", "#bf3989", "#0f766e", "#9a6700", "#57606a"]  # agents, benchmarks
MARKERS = "os^DvPX*"
OUTCOMES = {
    "scored": "#2da44e",
    "agent_timeout": "#7ac48d",
    "flagged": "#d4a72c",
    "no_model": "#e16f24",
    "invalid_model": "#bc4c01",
    "eval_failed": "#953800",
    "judge_missing": "#a475f9",
    "infra_error": "#cf222e",
    "cancelled": "#8c959f",
    "missing": "#d0d7de",
}
PHASE_COLOURS: dict[str, str] = dict(zip(PHASES, ("#8c959e", "#096adb", "#bc4d00"), strict=True))

_WIDTH = 400  # px, of a panel
_FONT = 12  # px
_ROW = 14  # px, of one of several agents' scores
_NAME = 22  # characters of a label, at most
_MOST_LINES = 40  # that join the attempts of a cell, in one panel


@dataclass(frozen=True)
class Panel:
    """One plot: its heading and its SVG, which comes from here and holds nothing unescaped."""

    title: str
    svg: str


def series_of(names: Sequence[str]) -> dict[str, int]:
    """Which colour and marker each agent or benchmark has, everywhere in a report."""
    return {name: number % len(SERIES) for number, name in enumerate(names)}


def score_panels(scores: list[Score], agents: dict[str, int]) -> list[Panel]:
    """Mean rewards with their intervals, a panel a benchmark and a line a model; a diamond is a final score."""
    return [_scores(name, own, agents) for name, own in grouped(scores, lambda one: one.entry["benchmark"]).items()]


def _scores(benchmark: str, scores: list[Score], agents: dict[str, int]) -> Panel:
    models = grouped(scores, lambda one: one.entry["model"])
    step = max(len(own) for own in models.values())
    axes, figure = _axes(height=len(models) * (step * _ROW + 12) + 46)
    for at, own in enumerate(models.values()):
        for number, one in enumerate(own):
            y = at + ((number + 1) / (len(own) + 1) - 0.5 if len(own) > 1 else 0.0)
            _score(axes, one, y, agents[one.entry["agent"]])
        if (base := own[0].base) is not None:
            axes.vlines(base, at - 0.46, at + 0.46, color=MUTED, linewidth=1.2, linestyles=":")
    axes.set_ylim(len(models) - 0.5, -0.5)
    axes.set_yticks(range(len(models)), [_short(model) for model in models])
    for at in range(1, len(models)):
        axes.axhline(at - 0.5, color=RULE, linewidth=0.8)
    _reward_axis(
        axes.set_xlim, [value for one in scores for value in (one.raw, one.entry["mean"]) if value is not None]
    )
    axes.grid(axis="x", color=RULE, linewidth=0.8)
    return Panel(benchmark, _svg(figure, f"scores {benchmark}"))


def _score(axes: Any, one: Score, y: float, series: int) -> None:
    colour, final = SERIES[series], one.entry["mean"]
    if one.interval:
        style = "--" if one.interval.over == "test items" else "-"
        axes.plot([one.interval.low, one.interval.high], [y, y], style, color=colour, linewidth=1.6)
    if one.raw is not None:
        axes.plot(one.raw, y, MARKERS[series], color=colour, markersize=6)
    if final is not None and final != one.raw:
        axes.plot(final, y, "d", color=colour, markersize=7, fillstyle="none", markeredgewidth=1.3)


def attempt_panels(rows: list[Row], agents: dict[str, int]) -> list[Panel]:
    """Rewards by attempt, a panel a benchmark; a line joins a task's, a cross below is one without a reward."""
    many = [row for row in rows if row.trials and (row.score["n_expected"] or len(row.trials)) > 1]
    return [_attempts(name, own, agents) for name, own in grouped(many, lambda row: row.benchmark).items()]


def _attempts(benchmark: str, rows: list[Row], agents: dict[str, int]) -> Panel:
    axes, figure = _axes(height=230)
    rewards = [one["reward"] for row in rows for one in row.trials if one["outcome"] in SCORED]
    low, _ = _reward_axis(axes.set_ylim, rewards, room_below=0.08)
    for row in rows:
        series = agents[named(row, "agent")]
        shift = (series - (len(agents) - 1) / 2) * 0.5 / max(len(agents), 1)
        found = sorted(row.trials, key=lambda one: (one.get("attempt") or 0, one["name"]))
        places = [(one.get("attempt") or number, one) for number, one in enumerate(found, 1)]
        scored = [(at + shift, one) for at, one in places if one["outcome"] in SCORED]
        failed = [(at + shift, one) for at, one in places if one["outcome"] not in SCORED]
        tasks = grouped(scored, lambda pair: pair[1].get("task")).values()
        for line in tasks if len(rows) * len(tasks) <= _MOST_LINES else ():
            xs, ys = [at for at, _ in line], [one["reward"] for _, one in line]
            axes.plot(xs, ys, "-", color=SERIES[series], linewidth=0.7, alpha=0.45)
        _linked(axes, row, [(at, one["reward"], one) for at, one in scored], SERIES[series], MARKERS[series])
        _linked(axes, row, [(at, low, one) for at, one in failed], SERIES[series], "x")
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=10))
    axes.set_xlabel("attempt", color=MUTED, fontsize=_FONT)
    axes.grid(axis="y", color=RULE, linewidth=0.8)
    return Panel(benchmark, _svg(figure, f"attempts {benchmark}"))


def _linked(axes: Any, row: Row, points: list[tuple[float, float, dict[str, Any]]], colour: str, marker: str) -> None:
    """Points that lead to the trials' pages."""
    if not points:
        return
    dots = axes.scatter(
        [x for x, _, _ in points], [y for _, y, _ in points], s=20, c=colour, marker=marker, linewidths=1.2, zorder=3
    )
    dots.set_urls([f"#trial/{quote(key_of(row, one))}" for _, _, one in points])


def time_panel(spending: list[dict[str, Any]]) -> Panel | None:
    """Time by agent and phase, in hours or, where all is shorter, in minutes."""
    bars = {
        agent: {phase: sum(one["hours"][phase] or 0.0 for one in own) for phase in PHASES}
        for agent, own in grouped(spending, lambda one: one["agent"]).items()
    }
    if max((sum(parts.values()) for parts in bars.values()), default=0.0) >= 1:
        return _bars("hours", bars, PHASE_COLOURS)
    minutes = {agent: {phase: 60 * hours for phase, hours in parts.items()} for agent, parts in bars.items()}
    return _bars("minutes", minutes, PHASE_COLOURS)


def money_panel(rows: list[Row], benchmarks: dict[str, int]) -> Panel | None:
    """Dollars by agent and benchmark."""
    bars = {
        agent: {
            benchmark: sum(one["cost_usd"] or 0.0 for row in own if row.benchmark == benchmark for one in row.trials)
            for benchmark in benchmarks
        }
        for agent, own in grouped(rows, lambda row: named(row, "agent")).items()
    }
    return _bars("US dollars", bars, {name: SERIES[number] for name, number in benchmarks.items()})


def outcome_panel(outcomes: list[dict[str, Any]]) -> Panel | None:
    """Trials by agent and outcome."""
    return _bars("trials", {one["agent"]: one["counts"] for one in outcomes}, OUTCOMES)


def _bars(unit: str, bars: dict[str, dict[str, float]], colours: dict[str, str]) -> Panel | None:
    """Bars in parts, one under the other; None when all are empty."""
    if not any(value for parts in bars.values() for value in parts.values()):
        return None
    axes, figure = _axes(height=len(bars) * 24 + 46)
    for at, parts in enumerate(bars.values()):
        left = 0.0
        for name, value in parts.items():
            axes.barh(at, value, 0.66, left=left, color=colours[name], linewidth=0)
            left += value
    axes.set_yticks(range(len(bars)), [_short(name) for name in bars])
    axes.set_ylim(len(bars) - 0.4, -0.6)
    axes.set_xlabel(unit, color=MUTED, fontsize=_FONT)
    axes.grid(axis="x", color=RULE, linewidth=0.8)
    return Panel(unit, _svg(figure, f"bars {unit}"))


# --- What all panels have in common -------------------------------------------------------------------


def _axes(height: float) -> tuple[Any, Any]:
    """Axes of a figure that is _WIDTH x height px; no part of pyplot, which keeps figures and looks for a display."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(_WIDTH / 72, height / 72), layout="constrained")
    axes = figure.add_subplot()
    axes.set_axisbelow(True)
    for side in axes.spines.values():
        side.set_visible(False)
    axes.tick_params(length=0, labelsize=_FONT, labelcolor=MUTED)
    return axes, figure


def _reward_axis(set_limits: Any, values: list[float], room_below: float = 0.0) -> tuple[float, float]:
    """From 0 to 1 where rewards are, wider only where one lies outside; intervals beyond are cut, not the points."""
    low, high = min([0.0, *values]), max([1.0, *values])
    room = (high - low) * 0.03
    limits = low - room - room_below * (high - low), high + room
    set_limits(*limits)
    return low - room_below * (high - low) * 0.6, limits[1]


def _short(name: str) -> str:
    shown = "".join(letter for letter in name if letter.isprintable())
    return shown if len(shown) <= _NAME else f"{shown[: _NAME - 1]}…"


def _svg(figure: Any, salt: str) -> str:
    import matplotlib as mpl

    settings: Any = {"svg.fonttype": "none", "svg.hashsalt": salt, "text.parse_math": False, "font.size": _FONT}
    out = io.StringIO()
    with mpl.rc_context(settings), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # letters that matplotlib has no font for: the browser has one
        figure.patch.set_visible(False)
        figure.axes[0].patch.set_visible(False)
        for text in [*figure.axes[0].get_xticklabels(), *figure.axes[0].get_yticklabels()]:
            text.set_parse_math(False)
        figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    return _for_a_page(out.getvalue())


def _for_a_page(svg: str) -> str:
    """The svg element alone, without ids that repeat, without style attributes (the page's policy forbids them)."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>|<!--.*?-->", "", svg, flags=re.DOTALL)
    used = set(re.findall(r"(?:#|url\(#)([\w-]+)", svg))
    svg = re.sub(r' id="([^"]*)"', lambda found: found.group() if found[1] in used else "", svg)
    svg = re.sub(r' style="([^"]*)"', lambda found: "".join(_attributes(found[1])), svg)
    svg = svg.replace("<a xlink:href=", '<a tabindex="-1" href=').replace(' target="_blank"', "")
    svg = re.sub(r' transform="rotate\(-0 [^"]*\)"', "", svg)
    head = f'<svg class="plot" aria-hidden="true" focusable="false" viewBox="0 0 {_WIDTH}'
    svg = re.sub(r'^<svg .*?viewBox="0 0 \S+', head, svg, count=1, flags=re.DOTALL)
    return re.sub(r">\s+<", "><", svg)


def _attributes(style: str) -> Iterator[str]:
    """A style attribute's declarations as attributes of their own; the page says which font."""
    for declaration in style.split(";"):
        name, _, value = declaration.partition(":")
        if value and not name.strip().startswith("font"):
            yield f' {name.strip()}="{value.strip()}"'
