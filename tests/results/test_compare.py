"""Comparisons: what is paired, what is claimed, and that nothing is claimed because something is missing."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ptb_runner.explain import UsageError
from ptb_runner.results.compare import Comparison, Rules, compare
from ptb_runner.results.comparisons import reports
from ptb_runner.results.pairs import sides
from tests.results.collect_kit import Made, make_sweep


def compared(tmp_path: Path, a: list[Made], b: list[Made], **rules: Any) -> Comparison:
    folders = [make_sweep(tmp_path / name, *made) for name, made in (("a", a), ("b", b))]
    ((one,), (other,)) = (sides(str(folder)) for folder in folders)
    return compare(one, other, Rules(**rules))


def many(values: Sequence[float | str] | np.ndarray, **options: Any) -> list[Made]:
    """A cell for each value, each of a benchmark of its own."""
    trials = [value if isinstance(value, str) else float(value) for value in values]
    return [Made(trials=[value], benchmark=f"b{number:02d}", **options) for number, value in enumerate(trials)]


BASE = np.linspace(0.2, 0.6, 12)
NOISE = np.array([1, -1, 2, -2, 0.5, -0.5, 1.5, -1.5, 0.2, -0.2, 0.8, -0.8]) / 100


# --- Pairs --------------------------------------------------------------------------------------------


def test_trials_are_paired_by_benchmark_model_task_and_attempt(tmp_path):
    a = [Made(trials=[0.1, 0.2, 0.3, 0.4], tasks=["x", "x", "y", "y"]), Made(trials=[0.5], model="big")]
    b = [
        Made(trials=[0.6], model="big", agent="nop"),
        Made(trials=[0.4, 0.3, 0.2, 0.1], tasks=["y", "y", "x", "z"], agent="nop"),
    ]
    found = compared(tmp_path, a, b).paired
    assert {(one.model, one.task, one.attempt): one.difference for one in found.pairs} == {
        ("nano", "x", 1): pytest.approx(0.1),
        ("nano", "x", 2): None,
        ("nano", "y", 1): pytest.approx(0.1),
        ("nano", "y", 2): pytest.approx(-0.1),
        ("nano", "z", 1): None,
        ("nano", "z", 2): None,
        ("big", "hello", 1): pytest.approx(0.1),
    }


def test_a_task_of_another_name_is_the_same_where_there_is_only_one(tmp_path):
    found = compared(tmp_path, [Made(trials=[0.1], tasks=["ptb/x"])], [Made(trials=[0.3], tasks=["mine"])]).paired
    assert [one.difference for one in found.pairs] == [pytest.approx(0.2)]


def test_repeats_are_paired_by_seed(tmp_path):
    a = [Made(trials=[seed / 10], overrides=[f"seed={seed}"]) for seed in (1, 2, 3)]
    b = [Made(trials=[seed / 10], overrides=[f"seed={seed}"]) for seed in (3, 2)]
    found = compared(tmp_path, a, b).paired
    assert [(one.repeat, one.difference) for one in found.pairs] == [("2", 0), ("3", 0)]
    assert (found.more_a, found.more_b) == (1, 0)


def test_what_only_one_side_has_is_named(tmp_path):
    found = compared(tmp_path, [Made(), Made(benchmark="sums")], [Made(trials=[1.0]), Made(model="big")]).paired
    assert (found.only_a, found.only_b, found.more_a) == (["sums x nano"], ["hello x big"], 1)


def test_a_trial_that_never_ran_is_half_a_pair(tmp_path):
    b = [Made(trials=["infra_error", 0.5], expected=3, state="cancelled")]
    found = compared(tmp_path, [Made(trials=[0.5] * 3)], b)
    assert [(one.a.state, one.b.state, one.b.value) for one in found.paired.pairs] == [
        ("scored", "infra_error", None),
        ("scored", "scored", 0.5),
        ("scored", "cancelled", None),
    ]
    assert (found.n_complete, found.n_missing_a, found.n_missing_b) == (1, 0, 2)


def test_the_benchmarks_policy_holds_in_comparisons_too(tmp_path):
    base = {"missing_score": "base_model", "zero_shot": {"nano": 0.1}}
    found = compared(tmp_path, [Made(trials=["no_model"], **base)], [Made(trials=[0.4], **base)])
    assert found.paired.pairs[0].difference == pytest.approx(0.3)


# --- Verdicts -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shift", "margin", "verdict"),
    [
        (0.05, None, "better"),
        (-0.05, None, "worse"),
        (0.001, None, "no difference shown"),
        (0.001, 0.02, "equivalent within ±0.02"),
        (0.001, 0.002, "no difference shown"),
        (0.05, 0.02, "better"),
    ],
)
def test_the_verdict(tmp_path, shift, margin, verdict):
    found = compared(tmp_path, many(BASE), many(BASE + NOISE + shift), margin=margin)
    assert found.verdict_text == verdict
    assert found.difference is not None
    assert found.difference.estimate == pytest.approx(shift)
    low, high = found.difference.interval
    assert low is not None
    assert high is not None
    assert low < shift < high
    assert (low > 0 or high < 0) == (verdict in ("better", "worse"))


def test_few_pairs_are_inconclusive_however_large_the_difference(tmp_path):
    found = compared(tmp_path, [Made(trials=[0.0] * 5)], [Made(trials=[0.9, 0.8, 0.7, 0.9, 0.8])])
    assert (found.verdict, found.why) == (
        "inconclusive",
        ["5 attempts cannot show a difference, it takes 6 or more"],
    )
    assert found.difference is not None
    assert found.difference.interval == (None, None)


def test_several_verdicts_share_the_confidence(tmp_path):
    values = BASE + NOISE * 2 + 0.017
    assert compared(tmp_path / "one", many(BASE), many(values)).verdict == "better"
    assert compared(tmp_path / "ten", many(BASE), many(values), verdicts=10).verdict == "no difference shown"


def test_weights_count_where_all_benchmarks_have_one(tmp_path):
    a = [Made(trials=[0.0] * 6, benchmark="x", weight=0.9), Made(trials=[0.0] * 6, benchmark="y", weight=0.1)]
    b = [Made(trials=[0.5] * 6, benchmark="x", weight=0.9), Made(trials=[0.1] * 6, benchmark="y", weight=0.1)]
    weighted = compared(tmp_path / "w", a, b).difference
    b[1] = Made(trials=[0.1] * 6, benchmark="y")
    a[1] = Made(trials=[0.0] * 6, benchmark="y")
    plain = compared(tmp_path / "p", a, b).difference
    assert weighted is not None
    assert plain is not None
    assert (weighted.estimate, weighted.weighted) == (pytest.approx(0.46), True)
    assert (plain.estimate, plain.weighted) == (pytest.approx(0.3), False)


def test_about_tasks_or_about_attempts_at_these_tasks(tmp_path):
    a, b = ([Made(trials=[value] * 4, benchmark=name) for name in ("x", "y")] for value in (0.1, 0.3))
    tasks = compared(tmp_path / "t", a, b)
    attempts = compared(tmp_path / "a", a, b, over="attempts")
    assert tasks.difference is not None
    assert attempts.difference is not None
    assert (tasks.difference.n_units, tasks.verdict) == (2, "inconclusive")
    assert (attempts.difference.n_units, attempts.verdict) == (8, "better")


def test_trials_that_flipped(tmp_path):
    found = compared(tmp_path, [Made(trials=[1.0, 0.0, 1.0, 1.0])], [Made(trials=[1.0, 1.0, 0.5, "infra_error"])])
    assert [one.attempt for one in found.gained] == [2]
    assert [one.attempt for one in found.lost] == [3]


def test_passes_are_compared_as_passes(tmp_path):
    a, b = [Made(trials=[0.9] * 8 + [1.0] * 2)], [Made(trials=[1.0] * 10)]
    found = compared(tmp_path, a, b, metric="pass").difference
    assert found is not None
    assert (found.estimate, found.mcnemar, found.p) == (pytest.approx(0.8), True, pytest.approx(2 / 2**8))


# --- What is missing ----------------------------------------------------------------------------------


def test_a_verdict_that_missing_trials_could_change_is_withheld(tmp_path):
    values = [*(BASE + NOISE + 0.05)]
    whole = compared(tmp_path / "whole", many(BASE), many(values))
    missing = compared(tmp_path / "part", many(BASE), many([*values[:-2], "infra_error", "infra_error"]))
    assert (whole.verdict, missing.verdict) == ("better", "inconclusive")
    assert missing.why[0] == (
        "2 of 12 pairs have a value on one side only; what is there says 'better', "
        "but with what is missing it could be 'no difference shown'"
    )


def test_a_verdict_that_missing_trials_cannot_change_stands(tmp_path):
    found = compared(tmp_path, many([0.9] * 20), many([*([0.1] * 19), "infra_error"]))
    assert (found.verdict, found.n_missing_b) == ("worse", 1)


def test_trials_missing_on_both_sides_change_nothing(tmp_path):
    values = many([*(BASE + NOISE + 0.05), "infra_error"])
    found = compared(tmp_path, many([*BASE, "infra_error"]), values)
    assert (found.verdict, found.n_missing_both) == ("better", 1)


def test_nothing_that_ran_is_inconclusive(tmp_path):
    found = compared(tmp_path, [Made(trials=["infra_error"])], [Made(trials=["infra_error"])])
    assert (found.verdict, found.difference) == ("inconclusive", None)
    assert found.why == ["no trial has a value on both sides"]


def test_a_finding_that_awaits_review_withholds_the_verdict(tmp_path):
    review = {"state": "awaiting", "raised": ["general.general_anomaly"]}
    b = many(BASE + NOISE + 0.05)
    b[3] = Made(**{**vars(b[3]), "review": review})
    found = compared(tmp_path, many(BASE), b)
    assert found.verdict == "inconclusive"
    assert "awaits review: cell 3: b03__001 (general.general_anomaly)" in found.why[0]


# --- Sides --------------------------------------------------------------------------------------------


def test_agents_of_one_name_are_compared_and_one_agent_with_all(tmp_path):
    both = [Made(trials=[0.5] * 6), Made(trials=[0.6] * 6, agent="nop")]
    one, two = (str(make_sweep(tmp_path / name, *both)) for name in ("one", "two"))
    single = str(make_sweep(tmp_path / "single", Made(trials=[0.1] * 6, agent="third")))

    def matched(*texts: str) -> list[tuple[str, str]]:
        found = reports(list(texts), Rules(), None, False)
        return [(report.comparison.a.agent, report.comparison.b.agent) for report in found]

    assert matched(one, two) == [("oracle", "oracle"), ("nop", "nop")]
    assert matched(one) == [("oracle", "nop")]
    assert matched(single, one) == [("third", "oracle"), ("third", "nop")]
    assert matched(f"{one}:nop", f"{two}:oracle") == [("nop", "oracle")]
    with pytest.raises(UsageError, match="no name is on both sides"):
        matched(one, single)
    with pytest.raises(UsageError, match="has no agent 'nob'"):
        matched(f"{one}:nob", two)
    with pytest.raises(UsageError, match="compared with itself"):
        matched(one, one)
    with pytest.raises(UsageError, match="has one agent only"):
        matched(single)
    with pytest.raises(UsageError, match="no such folder"):
        matched(one, str(tmp_path / "gone"))


def test_settings_that_differ(tmp_path):
    a = [Made(trials=[0.5], identity={"budget.hours": 10.0, "agent.model": "x", "seed": 1})]
    b = [Made(trials=[0.5], identity={"budget.hours": 1.0, "agent.model": "x", "seed": 2}, not_comparable=["1 h"])]
    folders = [str(make_sweep(tmp_path / name, *made)) for name, made in (("a", a), ("b", b))]
    (report,) = reports(folders, Rules(), None, False)
    assert {one.key: (one.a, one.b) for one in report.settings.differ} == {
        "budget.hours": ([10.0], [1.0]),
        "not comparable because": ([[]], [["1 h"]]),
    }


# --- The command --------------------------------------------------------------------------------------


def test_two_real_runs_from_the_command_line(ptb):
    for agent in ("oracle", "nop"):
        ptb("benchmark=hello", f"agent={agent}", "attempts=2", f"hydra.run.dir={agent}")
    ran = ptb("compare", "oracle", "nop")
    assert ran.code == 0, ran.err
    assert "inconclusive: -1.0000" in ran.out
    assert "passed in A and failed in B: 2" in ran.out
    assert "agent.name" in ran.out
    found = json.loads(ptb("compare", "oracle", "nop", "--json").out)["comparisons"][0]
    assert (found["verdict"], found["coverage"]["paired"], found["difference"]["estimate"]) == ("inconclusive", 2, -1.0)
    assert len(found["lost"]) == 2
    keys = {one["key"]: (one["a"], one["b"]) for one in found["settings"]["differ"]}
    assert keys["agent.name"] == (["oracle"], ["nop"])


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--margin", "0"], "0: not a number above 0"),
        (["--confidence", "95"], "95: not a number above 0.5 and below 1"),
        (["--over", "cells"], "invalid choice: 'cells'"),
    ],
)
def test_wrong_usage(ptb, arguments, told):
    ran = ptb("compare", "a", "b", *arguments)
    assert (ran.code, told in ran.err) == (2, True), ran.err
