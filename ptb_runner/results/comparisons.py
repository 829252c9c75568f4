"""Everything that `ptb compare` says: who is compared with whom, settings, parity, and the gate; also as JSON."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from ptb_runner.cell import SCHEMA_VERSION
from ptb_runner.explain import UsageError
from ptb_runner.results.compare import Comparison, Rules, compare
from ptb_runner.results.gate import Check, Policy, check
from ptb_runner.results.pairs import Pair, Side, opponents, sides
from ptb_runner.results.settings import ParityTable, Prompts, Settings, differences, parity_table, prompts


@dataclass(frozen=True)
class Parity:
    """Whether a side's runs are those of a published reference: in settings, prompts and scores."""

    shown: bool
    verdict: str
    table: ParityTable
    prompts: list[Prompts]


@dataclass(frozen=True)
class Report:
    """One comparison with all that stands beside it."""

    comparison: Comparison
    settings: Settings
    parity: Parity | None
    checks: list[Check]


def reports(texts: list[str], rules: Rules, policy: Policy | None, with_parity: bool) -> list[Report]:
    """Compare the first of DIR or DIR:AGENT with each of the others, or the agents of the only one.

    Raises UsageError when there is nothing to compare.
    """
    found = [sides(text) for text in texts]
    if len(found) > 1:
        matches = [match for other in found[1:] for match in opponents(found[0], other)]
    else:
        matches = [(found[0][0], other) for other in found[0][1:]]
    if not matches:
        raise UsageError(f"{texts[0]}: has one agent only\n  name what to compare it with: ptb compare {texts[0]} DIR")
    for a, b in matches:
        if a.folder.resolve() == b.folder.resolve() and a.agent == b.agent:
            raise UsageError(f"{b.folder}: compared with itself\n  name two folders, or two agents of it as DIR:AGENT")
    rules = dataclasses.replace(rules, verdicts=len(matches))
    return [_report(a, b, rules, policy, with_parity) for a, b in matches]


def _report(a: Side, b: Side, rules: Rules, policy: Policy | None, with_parity: bool) -> Report:
    table = parity_table(b) if with_parity else None
    if table and rules.margin is None:
        if table.margin is None:
            raise UsageError(
                f"--parity: no margin is stated, and {b.folder} has no reference with one\n"
                "  type --margin 0.02, the difference of scores within which runs count as equivalent"
            )
        rules = dataclasses.replace(rules, margin=table.margin)
    found, settings = compare(a, b, rules), differences(a, b)
    parity = _parity(table, prompts(a, b), found) if table else None
    checks = check(policy, found, settings, (parity.shown, parity.verdict) if parity else None) if policy else []
    return Report(found, settings, parity, checks)


def _parity(table: ParityTable, texts: list[Prompts], found: Comparison) -> Parity:
    """Parity is shown by equal settings, equal prompts and equivalent scores, and by nothing less."""
    against, unshown = [], []
    if table.without:
        unshown.append(f"{', '.join(table.without)} without a reference's settings (+parity=NAME)")
    if other := [one["setting"] for one in table.settings if not one["equal"]]:
        against.append(f"{len(other)} settings are not the reference's")
    if changed := [one.place for one in texts if one.bytes_differing]:
        against.append(f"the prompts differ ({', '.join(changed)})")
    if [one for one in texts if one.bytes_differing is None]:
        unshown.append("the prompts are not known on both sides")
    if found.paired.only_a or found.paired.only_b:
        unshown.append("not all benchmarks and models are on both sides")
    if found.verdict in ("better", "worse"):
        against.append(f"a difference of scores is shown ({found.verdict})")
    elif found.verdict != "equivalent":
        unshown.append(f"scores: {found.verdict}, equivalence within ±{found.rules.margin:g} is not shown")
    if against:
        verdict = f"no parity: {'; '.join([*against, *unshown])}"
    elif unshown:
        verdict = f"parity is not shown: {'; '.join(unshown)}"
    else:
        verdict = f"parity is shown: equal settings and prompts, scores equivalent within ±{found.rules.margin:g}"
    return Parity(not against and not unshown, verdict, table, texts)


# --- For programs -------------------------------------------------------------------------------------


def as_json(found: list[Report], rules: Rules, gated: bool) -> dict[str, Any]:
    """All of it as plain data."""
    return {
        "schema_version": SCHEMA_VERSION,
        "confidence": rules.confidence,
        "comparisons": [_plain(report) for report in found],
        "gate": {"passed": passed(found)} if gated else None,
    }


def passed(found: list[Report]) -> bool:
    """Whether all that a policy asks for holds."""
    return all(one.passed for report in found for one in report.checks)


def _plain(report: Report) -> dict[str, Any]:
    found, parity = report.comparison, report.parity
    return {
        "a": _side(found.a),
        "b": _side(found.b),
        "verdict": found.verdict,
        "verdict_text": found.verdict_text,
        "why": found.why,
        "margin": found.rules.margin,
        "metric": found.rules.metric,
        "alpha": found.rules.alpha,
        "difference": found.difference and dataclasses.asdict(found.difference),
        "coverage": {
            "planned_on_both_sides": len(found.paired.pairs),
            "paired": found.n_complete,
            "missing_a": found.n_missing_a,
            "missing_b": found.n_missing_b,
            "missing_both": found.n_missing_both,
            "more_planned_a": found.paired.more_a,
            "more_planned_b": found.paired.more_b,
            "only_a": found.paired.only_a,
            "only_b": found.paired.only_b,
        },
        "gained": [name(one) for one in found.gained],
        "lost": [name(one) for one in found.lost],
        "settings": {name: dataclasses.asdict(report.settings)[name] for name in ("differ", "unknown")},
        "parity": parity and _parity_plain(parity),
        "checks": [dataclasses.asdict(one) for one in report.checks],
        "pairs": [dataclasses.asdict(one) | {"difference": one.difference} for one in found.paired.pairs],
    }


def _side(side: Side) -> dict[str, Any]:
    return {"folder": str(side.folder), "agent": side.agent, "cells": [row.number for row in side.rows]}


def _parity_plain(parity: Parity) -> dict[str, Any]:
    plain = dataclasses.asdict(parity)
    plain["table"] |= {"folder": str(parity.table.folder), "equal": parity.table.equal}
    return plain


def name(one: Pair) -> str:
    """A pair in a word."""
    task = "" if one.task == one.benchmark else f" {one.task}"
    repeat = "" if one.repeat == "0" else f" repeat {one.repeat}"
    return f"{one.benchmark} x {one.model}{task}{repeat} attempt {one.attempt}"
