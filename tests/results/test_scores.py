"""Weighted scores: the published figures, repeats, what is missing, and what awaits review."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import yaml

from ptb_runner.paths import CONF
from ptb_runner.results.collect import collect
from ptb_runner.results.rows import read_rows
from ptb_runner.results.scores import AgentScore, agent_scores
from tests.results.collect_kit import Made, make_sweep

MODELS = ("qwen3-1.7b", "qwen3-4b", "smollm3-3b", "gemma3-4b")


def published() -> dict[str, dict[str, Any]]:
    """PostTrainBench's benchmarks that have a weight, as conf/ has them."""
    found = [yaml.safe_load(path.read_text()) for path in sorted((CONF / "benchmark").glob("*.yaml"))]
    return {one["id"]: one for one in found if one.get("weight")}


def suite(agent: str, figures: str | None, **options: Any) -> list[Made]:
    """A cell for each benchmark and model: rewards by a table of conf/, or trials that left no model."""
    return [
        Made(
            trials=[benchmark[figures][model]] if figures else ["no_model"],
            benchmark=name,
            model=model,
            agent=agent,
            weight=benchmark["weight"],
            models=MODELS,
            missing_score="base_model",
            zero_shot=benchmark["zero_shot"],
            **options,
        )
        for name, benchmark in published().items()
        for model in MODELS
    ]


def scores(folder: Path, *cells: Made) -> list[AgentScore]:
    return agent_scores(read_rows(make_sweep(folder, *cells)))


def small(agent: str = "oracle", **values: Any) -> list[Made]:
    """A set of two benchmarks and two models: `sums_big=[0.5]` gives that place's trials; None leaves it out."""
    weights = {"sums": 0.75, "words": 0.25}
    wanted = {f"{name}_{model}": [0.5] for name in weights for model in ("nano", "big")} | values
    return [
        Made(trials=trials, benchmark=name, model=model, agent=agent, weight=weights[name], models=("nano", "big"))
        for key, trials in wanted.items()
        if trials is not None
        for name, model in [key.split("_")]
    ]


# --- The published figures ----------------------------------------------------------------------------


def test_the_published_scores_of_base_and_tuned_models(tmp_path):
    cells = [*suite("nothing", None), *suite("instruct", "instruct"), *suite("few_shot", "few_shot")]
    nothing, instruct, few_shot = scores(tmp_path / "s", *cells)
    assert round(100 * (nothing.score or 0), 4) == 7.5276  # no model at all counts as the base model
    assert round(100 * (instruct.score or 0), 4) == 51.1359
    assert round(100 * (few_shot.score or 0), 4) == 18.0776
    assert (nothing.n_replaced, nothing.n_scored, nothing.n_expected) == (28, 0, 28)
    assert (instruct.n_replaced, instruct.n_scored, instruct.part, instruct.comparable) == (0, 28, None, True)
    collect(tmp_path / "s")
    board = (tmp_path / "s" / "leaderboard.md").read_text().splitlines()
    assert [line for line in board if line.startswith(("| instruct", "| nothing", "| few_shot"))] == [
        "| instruct | 51.14 | 1 | 28/28 | 28/28 |  |",
        "| few_shot | 18.08 | 1 | 28/28 | 28/28 |  |",
        "| nothing | 7.53 | 1 | 28/28 | 0/28 | 28 trials count as the base model |",
    ]


def test_a_part_of_the_benchmarks_is_never_the_score(tmp_path):
    part = [made for made in suite("instruct", "instruct") if made.benchmark == "gsm8k" and made.model != "gemma3-4b"]
    (found,) = scores(tmp_path / "s", *part)
    assert (found.score, found.why_none) == (None, None)
    own = published()["gsm8k"]["instruct"]
    assert found.partial == pytest.approx(sum(own[model] for model in MODELS[:3]) / 3)
    assert found.part == "gsm8k (weights 0.09 of 1) with qwen3-1.7b, qwen3-4b, smollm3-3b"


def test_a_cell_that_was_not_planned_is_not_averaged_away(tmp_path):
    (found,) = scores(tmp_path / "s", *suite("instruct", "instruct")[:-1])
    assert (found.score, found.partial) == (None, None)
    assert found.why_none == "not every benchmark was planned with the same models"


# --- Repeats ------------------------------------------------------------------------------------------


def test_the_standard_error_over_repeats(tmp_path):
    values = {"sums_nano": [0.1, 0.3], "sums_big": [0.4, 0.4], "words_nano": [0.0, 1.0], "words_big": [0.5, 0.7]}
    (attempts,) = scores(tmp_path / "attempts", *small("oracle", **values))
    cells = [
        made
        for number in (0, 1)
        for made in small("oracle", **{key: [repeats[number]] for key, repeats in values.items()})
    ]
    seeds = [Made(**{**vars(made), "overrides": [f"seed={number // 4}"]}) for number, made in enumerate(cells)]
    (repeats,) = scores(tmp_path / "seeds", *seeds)
    # Two whole runs of the set: the mean of their scores, and errors that add up in squares.
    runs = [0.75 * (0.1 + 0.4) / 2 + 0.25 * (0.0 + 0.5) / 2, 0.75 * (0.3 + 0.4) / 2 + 0.25 * (1.0 + 0.7) / 2]
    error = math.hypot(0.75 * 0.1 / 2, 0.0, 0.25 * 0.5 / 2, 0.25 * 0.1 / 2)
    for found in (attempts, repeats):
        assert (found.score, found.standard_error) == (pytest.approx(sum(runs) / 2), pytest.approx(error))
        assert (found.n_repeats, found.n_places, found.n_scored) == (2, 4, 8)


def test_one_place_without_a_repeat_leaves_the_error_unknown(tmp_path):
    (found,) = scores(tmp_path / "s", *small(sums_nano=[0.1, 0.3], sums_big=[0.4, 0.4], words_big=[0.5, 0.7]))
    assert (found.score is not None, found.standard_error, found.n_repeats) == (True, None, 1)
    assert found.benchmarks[0].standard_error == pytest.approx(0.1 / 2)


def test_a_trial_without_a_model_is_a_repeat_that_counts_as_the_base_model(tmp_path):
    made = Made(
        trials=[0.5, "no_model", "infra_error"], weight=1.0, missing_score="base_model", zero_shot={"nano": 0.1}
    )
    (found,) = scores(tmp_path / "s", made)
    assert (found.score, found.standard_error) == (pytest.approx(0.3), pytest.approx(0.2))
    assert (found.n_repeats, found.n_replaced, found.n_scored, found.n_expected) == (2, 1, 1, 3)


def test_settings_make_other_agents_and_seeds_do_not(tmp_path):
    made = [
        Made(
            trials=[value], weight=1.0, overrides=[f"budget={budget}", f"seed={seed}", "agent.model=x", "concurrency=2"]
        )
        for budget, seed, value in (("full", 1, 0.4), ("full", 2, 0.6), ("smoke", 1, 0.1))
    ]
    found = scores(tmp_path / "s", *made)
    assert [(one.agent, one.score, one.n_repeats) for one in found] == [
        ("oracle agent.model=x budget=full", 0.5, 2),
        ("oracle agent.model=x budget=smoke", 0.1, 1),
    ]


def test_settings_of_one_benchmark_do_not_split_an_agent(tmp_path):
    cells = small()
    cells[0] = Made(**{**vars(cells[0]), "overrides": ["benchmark.verifier_hours=3"]})
    (found,) = scores(tmp_path / "s", *cells)
    assert (found.agent, found.score) == ("oracle", 0.5)


# --- What is missing ----------------------------------------------------------------------------------


def test_cells_without_a_run_are_named(tmp_path):
    whole, planned, broken = small(), small("b", sums_nano=None, sums_big=[]), small("c", words_big=["infra_error"])
    planned = [
        Made(**{**vars(made), "state": "finished" if made.trials else "planned", "expected": 1}) for made in planned
    ]
    first, second, third = scores(tmp_path / "s", *whole, *planned, *broken)
    assert (first.score, first.why_none, first.between) == (0.5, None, None)
    assert (second.score, second.partial) == (None, None)
    assert second.why_none == "without a score: sums x nano (no run), sums x big (planned)"
    assert second.between == (pytest.approx(0.125), pytest.approx(0.875))
    assert (second.n_places_scored, second.n_places, second.n_scored) == (2, 4, 2)
    assert second.benchmarks[0].mean is None
    assert second.benchmarks[1].mean == 0.5
    assert third.why_none == "without a score: words x big (infra_error)"
    collect(tmp_path / "s")
    assert (
        "| b | - | 0 | 2/4 | 2/3 | without a score: sums x nano (no run), sums x big (planned); "
        "between 12.50 and 87.50 once all have one |"
    ) in (tmp_path / "s" / "leaderboard.md").read_text()


def test_no_weights_no_weighted_score(tmp_path):
    assert scores(tmp_path / "s", Made(), Made(weight=0.0)) == []
    collect(tmp_path / "s")
    assert "Weighted" not in (tmp_path / "s" / "leaderboard.md").read_text()


# --- Reviews ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("state", "score"), [("awaiting", None), ("accepted", 0.5), ("rejected", 0.5)])
def test_a_finding_that_awaits_review_withholds_the_score(tmp_path, state, score):
    cells = small()
    cells[3] = Made(**{**vars(cells[3]), "review": {"state": state, "raised": ["general.general_anomaly"]}})
    (found,) = scores(tmp_path / "s", *cells)
    assert found.score == score
    if score is None:
        assert found.why_none == "without a score: words x big (awaits review)"
        assert found.between is None
        assert found.awaiting_review == ["cell 3: words__001 (general.general_anomaly)"]
        collect(tmp_path / "s")
        assert (
            "awaits review: cell 3: words__001 (general.general_anomaly)"
            in (tmp_path / "s" / "leaderboard.md").read_text()
        )


def test_metrics_json_has_the_scores(tmp_path):
    scores(tmp_path / "s", *small())
    collect(tmp_path / "s")
    (found,) = json.loads((tmp_path / "s" / "metrics.json").read_text())["scores"]
    assert (found["agent"], found["score"], found["benchmarks"][0]["models"]) == ("oracle", 0.5, ["nano", "big"])
