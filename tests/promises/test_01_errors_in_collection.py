"""Promise 1, in collections: an error is never turned into a 0, in no file and in no mean."""

from __future__ import annotations

import csv
import json

import pytest

from ptb_runner.outcome import SCORED, Outcome
from ptb_runner.results.collect import collect
from tests.results.collect_kit import Made, make_sweep

ERRORS = ["no_model", "invalid_model", "eval_failed", "infra_error", "cancelled"]


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("state", ["finished", "cancelled", "running"])
def test_an_error_has_no_number_anywhere(tmp_path, error, state):
    folder = make_sweep(
        tmp_path / "s",
        Made(trials=[error, error], state=state, overrides=["seed=1"]),
        Made(trials=[0.75, 0.25], overrides=["seed=2"]),
        Made(trials=[1.0, error], state=state, overrides=["seed=3"]),
    )
    collect(folder)
    trials = [json.loads(line) for line in (folder / "results.jsonl").read_text().splitlines()]
    assert [trial["reward"] for trial in trials if trial["outcome"] not in SCORED] == [None] * 3
    with (folder / "results.csv").open(newline="") as file:
        cells = list(csv.DictReader(file))
    assert [(cell["raw"], cell["final"]) for cell in cells] == [("", ""), ("0.5", "0.5"), ("1.0", "1.0")]
    assert [cell["coverage"] for cell in cells] == ["0.0", "1.0", "0.5"]
    page = (folder / "leaderboard.md").read_text()
    assert f"- ({'cancelled' if state == 'cancelled' else error}, 0/2)" in page
    assert "0.0000" not in page
    means = [one["mean"] for one in json.loads((folder / "metrics.json").read_text())["leaderboard"]]
    assert 0 not in means
    assert None in means


@pytest.mark.parametrize("outcome", sorted(set(Outcome) - SCORED - {Outcome.flagged, Outcome.judge_missing}))
def test_a_result_that_gives_an_error_a_number_is_refused(tmp_path, outcome):
    folder = make_sweep(tmp_path / "s", Made(trials=[0.5, "infra_error"]))
    path = folder / "0" / "result.json"
    result = json.loads(path.read_text())
    result["trials"][1] |= {"outcome": str(outcome), "reward": 0.0}
    path.write_text(json.dumps(result))
    assert "has the reward 0.0" in collect(folder).problems[0]
    assert "0.0000" not in (folder / "leaderboard.md").read_text()


def test_the_verifiers_own_zero_is_a_zero(tmp_path):
    folder = make_sweep(tmp_path / "s", Made(trials=[0.0, 0.0]))
    assert collect(folder).complete
    assert "0.0000 (2/2)" in (folder / "leaderboard.md").read_text()
