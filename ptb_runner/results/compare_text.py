"""A comparison in words, for a terminal or a log."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.console import Console
from rich.table import Table

from ptb_runner.results.compare import Comparison, Difference
from ptb_runner.results.comparisons import Report, name
from ptb_runner.results.pairs import Pair
from ptb_runner.results.settings import Settings
from ptb_runner.terminal import shown

MOST = 12  # lines of a list that are printed; --json has all

_SAYS = {
    "better": "B is better than A",
    "worse": "B is worse than A",
    "no difference shown": "no difference shown between A and B",
    "inconclusive": "inconclusive",
}


def print_report(report: Report, out: Console) -> None:
    """One comparison, its settings, its parity and its gate."""
    found = report.comparison
    _print(out, _headline(found), *(f"  {text}" for text in found.why))
    for letter, side in (("A", found.a), ("B", found.b)):
        mean = "" if found.difference is None else f"{getattr(found.difference, f'mean_{letter.lower()}'):.4f}  "
        _print(out, f"  {letter}: {mean}{side.agent}  {shown(side.folder)}")
    if found.difference:
        _print(out, *(f"  {text}" for text in _method(found.difference, found)))
    _print(out, *(f"  {text}" for text in _coverage(found)))
    _list(out, "passed in A and failed in B", [_place(one) for one in found.lost])
    _list(out, "failed in A and passed in B", [_place(one) for one in found.gained])
    if not found.lost and not found.gained:
        _list(out, "largest differences", _largest(found))
    _settings(report.settings, out)
    _parity(report, out)
    for check in report.checks:
        _print(out, f"gate {'passed' if check.passed else 'FAILED'}: {check.what}: {check.found}")


def _print(out: Console, *lines: str) -> None:
    for line in lines:
        out.print(line, markup=False)


def _list(out: Console, title: str, lines: list[str]) -> None:
    if lines:
        more = [f"    and {len(lines) - MOST} more: --json has all"] if len(lines) > MOST else []
        _print(out, f"  {title}: {len(lines)}", *(f"    {line}" for line in lines[:MOST]), *more)


def _headline(found: Comparison) -> str:
    says = _SAYS.get(found.verdict, f"A and B are {found.verdict_text}")
    if found.difference is None:
        return says
    one, share = found.difference, 100 * (1 - found.rules.alpha)
    ends = [f"{end:+.4f}" if end is not None else "open" for end in one.interval]
    interval = f"{share:.4g}% interval {ends[0]} to {ends[1]}"
    return f"{says}: {one.estimate:+.4f} ({interval}), p = {one.p:.4f}"


def _method(one: Difference, found: Comparison) -> Iterator[str]:
    test = "McNemar's exact test" if one.mcnemar else "sign-flip test"
    about = "tasks like these" if one.over == "tasks" else "these tasks as given"
    weighted = ", weighted by benchmark" if one.weighted else ""
    yield f"{one.n_units} {one.over if one.n_units != 1 else one.over[:-1]}{weighted}; {test}, about {about}"
    if one.bootstrap:
        yield f"bootstrap interval (BCa): {one.bootstrap[0]:+.4f} to {one.bootstrap[1]:+.4f}"
    if one.p_equivalent is not None:
        yield f"equivalence within ±{found.rules.margin:g} (two one-sided tests): p = {one.p_equivalent:.4f}"
    size = "none: too few, or no variation" if one.detectable is None else f"{one.detectable:.4f}"
    yield f"smallest difference that this would show with 80% power: {size}"
    if found.rules.verdicts > 1:
        yield f"{found.rules.verdicts} comparisons share the {100 * found.rules.confidence:g}%"


def _coverage(found: Comparison) -> Iterator[str]:
    pairs = found.paired
    lacking = f"{found.n_missing_a} lack A, {found.n_missing_b} lack B, {found.n_missing_both} lack both"
    yield f"coverage: {found.n_complete}/{len(pairs.pairs)} pairs; {lacking}"
    for letter, more, only in (("A", pairs.more_a, pairs.only_a), ("B", pairs.more_b, pairs.only_b)):
        if more:
            yield f"not paired: {more} further trials that only {letter} planned"
        if only:
            yield f"not compared, only in {letter}: {', '.join(only)}"
    for one in [one for one in pairs.pairs if one.difference is None][:MOST]:
        yield f"  no pair: {name(one)}: A {one.a.state}, B {one.b.state}"


def _place(one: Pair) -> str:
    trials = f"A {one.a.cell}/{one.a.trial}, B {one.b.cell}/{one.b.trial}"
    return f"{name(one)}: {one.a.value:.4f} -> {one.b.value:.4f}  ({trials})"


def _largest(found: Comparison) -> list[str]:
    whole = [one for one in found.paired.pairs if one.difference]
    return [_place(one) for one in sorted(whole, key=lambda one: -abs(one.difference or 0.0))]


def _settings(found: Settings, out: Console) -> None:
    if found.differ:
        table = Table("differs in", "A", "B", "places", title="settings", title_justify="left")
        for one in found.differ:
            table.add_row(*(_cut(text) for text in (one.key, _values(one.a), _values(one.b))), str(one.n_places))
        out.print(table)
    elif not found.unknown:
        _print(out, "  settings: no difference")
    if found.unknown:
        more = f" and {len(found.unknown) - MOST} more" if len(found.unknown) > MOST else ""
        _print(out, f"  settings of these cells are not known: {', '.join(found.unknown[:MOST])}{more}")


def _values(values: list[Any]) -> str:
    return ", ".join("unset" if value is None else str(value) for value in values)


def _cut(text: str) -> str:
    text = text if len(text) <= 70 else f"{text[:67]}..."
    return text.replace("[", r"\[")


def _parity(report: Report, out: Console) -> None:
    parity = report.parity
    if parity is None:
        return
    table = Table(
        "setting", "reference", "B", "equal", title=f"reference {parity.table.reference}", title_justify="left"
    )
    for one in parity.table.settings:
        values = (one["setting"], _values([one["reference"]]), _values([one["used"]]))
        table.add_row(*map(_cut, values), "yes" if one["equal"] else "NO")
    if parity.table.settings:
        out.print(table)
    for one in parity.prompts:
        if one.bytes_differing is None:
            sizes = ["not there" if size is None else f"{size} bytes" for size in (one.bytes_a, one.bytes_b)]
            _print(out, f"prompt of {one.place}: A {sizes[0]}, B {sizes[1]}")
        else:
            _print(out, f"prompt of {one.place}: {one.bytes_differing} bytes differ ({one.bytes_a} and {one.bytes_b})")
            _print(out, *(f"    {line}" for line in one.difference.splitlines()))
    _print(out, parity.verdict)
