"""Statistics of datasets, against enumeration and by hand."""

from __future__ import annotations

import itertools
import math
import statistics
from typing import Any

import pytest

from ptb_runner.results.row import Row
from ptb_runner.results.stats import clustered_error, page, pass_at_k, statistics_of

PASSED, FAILED, ERRORED, CANCELLED = 1.0, 0.0, "infra_error", "cancelled"


def row(tasks: dict[str, list[Any]], attempts: int, **result: Any) -> Row:
    """A cell whose trials' rewards or outcomes are given by task; None is a trial that never began."""
    trials = [
        {
            "name": f"{task}__{number:03d}",
            "outcome": value if isinstance(value, str) else "scored",
            "reward": None if isinstance(value, str) else value,
        }
        for task, values in tasks.items()
        for number, value in enumerate(values, 1)
        if value is not None
    ]
    made = {"tasks": list(tasks), "attempts": attempts, "trials": trials, "max_error_rate": 0.1} | result
    names = ("cell_id", "benchmark", "model", "agent", "backend", "folder", "state")
    given: dict[str, Any] = {name: name for name in names}
    given |= {"number": 3, "overrides": [], "result": made, "gpus": 0, "runner_error": None, "problems": []}
    return Row(**given)


@pytest.mark.parametrize(("n", "c"), [(5, 2), (4, 0), (4, 4), (6, 1)])
def test_pass_at_k_is_the_share_of_draws_with_a_pass(n, c):
    attempts = [True] * c + [False] * (n - c)
    for k in range(1, n + 1):
        draws = list(itertools.combinations(attempts, k))
        assert pass_at_k(n, c, k) == pytest.approx(sum(map(any, draws)) / len(draws))


def test_the_standard_error_has_tasks_as_clusters():
    single = [{1: value} for value in (0.2, 0.9, 0.4, 0.4)]
    ordinary = statistics.stdev([0.2, 0.9, 0.4, 0.4]) / math.sqrt(4)
    assert clustered_error(single) == pytest.approx(ordinary)
    # The same answer twice is no news: the naive error would shrink by the root of two.
    twice = [{1: value, 2: value} for value in (0.2, 0.9, 0.4, 0.4)]
    assert clustered_error(twice) == pytest.approx(ordinary)
    assert clustered_error([{1: 1.0, 2: 0.0}]) is None
    assert clustered_error([{}, {1: 1.0}, {}]) is None


def test_by_hand():
    found = statistics_of(row({"a": [1.0, 1.0], "b": [1.0, 0.0], "c": [0.0, 0.0]}, 2))
    assert found["mean_reward"] == 0.5
    assert found["sem"] == pytest.approx(math.sqrt(3 / 2 * (1 + 0 + 1)) / 6)
    assert [run["score"] for run in found["run_scores"]] == pytest.approx([2 / 3, 1 / 3])
    assert found["std_population"] == pytest.approx(1 / 6)
    assert found["std"] == found["std_sample"] == pytest.approx(math.sqrt(2) / 6)
    assert found["pass_at_k"] == {"1": pytest.approx(0.5), "2": pytest.approx(2 / 3)}


def test_an_error_is_no_zero_and_a_missing_trial_is_counted():
    tasks = {"a": [1.0, ERRORED, 1.0], "b": [1.0, 0.0, None], "c": [0.0, 1.0, CANCELLED]}
    found = statistics_of(row(tasks, 3, max_error_rate=0.5))
    assert {key: found[key] for key in ("n_expected", "n_scored", "n_errored", "n_missing")} == {
        "n_expected": 9,
        "n_scored": 6,
        "n_errored": 1,
        "n_missing": 2,
    }
    assert found["mean_reward"] == pytest.approx(4 / 6)
    assert [run["n_scored"] for run in found["run_scores"]] == [3, 2, 1]
    assert set(found["pass_at_k"]) == {"1", "2"}  # no task has three attempts that count
    assert found["per_task"]["a"] == {
        "mean_reward": 1.0,
        "rewards": [1.0, None, 1.0],
        "outcomes": {"scored": 2, "infra_error": 1},
    }


def test_no_headline_over_too_many_errors():
    tasks = {"a": [1.0, 1.0], "b": [ERRORED, None]}
    found = statistics_of(row(tasks, 2))
    assert (found["mean_reward"], found["sem"], found["pass_at_k"]) == (None, None, {})
    assert "2 of 4 trials have no score (1 errored, 1 missing)" in found["refused"]
    assert "mean reward: not given" in page([found])
    assert statistics_of(row(tasks, 2, max_error_rate=0.5))["mean_reward"] == 1.0


def test_pass_at_k_counts_rewards_from_pass_reward_on():
    tasks = {"a": [0.6, 0.4], "b": [0.5, 0.1]}
    assert statistics_of(row(tasks, 2, pass_reward=0.5))["pass_at_k"] == {"1": 0.5, "2": 1.0}
    assert statistics_of(row(tasks, 2))["pass_at_k"] == {"1": 0.0, "2": 0.0}


def test_nothing_scored():
    found = statistics_of(row({"a": [None], "b": [None]}, 1, max_error_rate=1.0))
    assert (found["mean_reward"], found["sem"], found["std"], found["pass_at_k"]) == (None, None, None, {})
    assert "mean reward: -" in page([found])
