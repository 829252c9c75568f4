"""Collecting a sweep: what is written, that only the cells' files decide it, and that damage is told."""

from __future__ import annotations

import csv
import json
import math
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from ptb_runner.explain import UsageError
from ptb_runner.results.collect import Collected, collect
from ptb_runner.results.leaderboard import standings
from ptb_runner.results.rows import read_rows
from tests.results.collect_kit import Made, cell_id, entry, make_cell, make_sweep, write_sweep
from tests.run_kit import only_cell

OUTPUTS = ["results.jsonl", "results.csv", "leaderboard.md", "metrics.json"]


def outputs(folder: Path) -> dict[str, bytes]:
    collected = collect(folder)
    assert collected.paths == [folder / name for name in OUTPUTS]
    return {path.name: path.read_bytes() for path in collected.paths}


def lines(folder: Path) -> list[dict[str, str]]:
    with (folder / "results.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def board(folder: Path) -> list[str]:
    """The leaderboard's lines that say something, without the introduction."""
    text = (folder / "leaderboard.md").read_text().partition("\n## ")[2]
    return [line for line in f"## {text}".splitlines() if line]


def edit(path: Path, **changes: Any) -> None:
    """Change values of a JSON file; a name such as score__raw reaches into it."""
    content = json.loads(path.read_text())
    for name, value in changes.items():
        *way, last = name.split("__")
        place = content
        for key in way:
            place = place[int(key) if key.isdecimal() else key]
        place[last] = value
    path.write_text(json.dumps(content))


# --- What is written ----------------------------------------------------------------------------------


def test_a_line_a_trial_with_the_cell_that_it_is_of(tmp_path):
    folder = make_sweep(
        tmp_path / "s",
        Made(trials=[0.5, "infra_error"], overrides=["seed=1"]),
        Made(trials=[], expected=3, state="planned"),
        Made(trials=[1.0], model="big"),
    )
    assert collect(folder).n_trials == 3
    found = [json.loads(line) for line in (folder / "results.jsonl").read_text().splitlines()]
    assert [(one["number"], one["model"], one["name"], one["reward"]) for one in found] == [
        (0, "nano", "hello__001", 0.5),
        (0, "nano", "hello__002", None),
        (2, "big", "hello__001", 1.0),
    ]
    saved = json.loads((folder / "0" / "result.json").read_text())["trials"][1]
    assert found[1] == saved | {
        "number": 0,
        "cell_id": cell_id(0),
        "benchmark": "hello",
        "model": "nano",
        "agent": "oracle",
        "backend": "bubblewrap",
        "overrides": ["seed=1"],
        "folder": "0",
    }


def test_a_line_a_cell_with_all_its_figures(tmp_path):
    made = Made(trials=[0.1, 0.2, "infra_error"], expected=4, gpus=2, overrides=["seed=1", "agent.options.x='a b'"])
    folder = make_sweep(tmp_path / "s", made, Made(trials=[], expected=2, state="planned"))
    collect(folder)
    assert lines(folder)[0] == {
        "number": "0",
        "cell_id": cell_id(0),
        "benchmark": "hello",
        "model": "nano",
        "agent": "oracle",
        "backend": "bubblewrap",
        "overrides": "seed=1 'agent.options.x='\"'\"'a b'\"'\"''",
        "state": "finished",
        "outcome": "infra_error",
        "raw": repr((0.1 + 0.2) / 2),
        "final": repr((0.1 + 0.2) / 2),
        "final_source": "verifier",
        "n_expected": "4",
        "n_scored": "2",
        "coverage": "0.5",
        "comparable": "true",
        "flags": "",
        "mean_environment_sec": "10.0",
        "mean_agent_sec": "20.0",
        "mean_verifier_sec": "30.0",
        "mean_total_sec": "61.0",
        "input_tokens": "300",
        "cached_tokens": "",
        "output_tokens": "30",
        "cost_usd": "0.75",
        "gpu_hours": repr(2 * 180 / 3600),
        "server_gpu_hours": "",
        "started_at": "2026-01-02T03:03:59.000+00:00",
        "finished_at": "2026-01-02T03:05:02.000+00:00",
        "error": "EnvironmentStartTimeoutError: no room",
    }
    planned = {key for key, value in lines(folder)[1].items() if value} - {"number", "cell_id", "state"}
    assert planned == {"benchmark", "model", "agent", "backend", "n_expected", "n_scored", "coverage"}


def test_the_leaderboard(tmp_path):
    limit = "the agent had 1 h, the benchmark's own limit is 10 h"
    base = {"missing_score": "base_model", "zero_shot": {"nano": 0.1, "big": 0.2}}
    folder = make_sweep(
        tmp_path / "s",
        Made(trials=[0.5] * 3, overrides=["seed=1"]),
        Made(trials=[0.7, 0.7, "infra_error"], overrides=["seed=2"]),
        Made(trials=[], expected=3, state="planned", overrides=["seed=3"]),
        Made(trials=[], expected=3, state="skipped", overrides=["seed=4"]),
        Made(trials=[], expected=3, state="skipped", overrides=["seed=5"]),
        Made(trials=[0.9], overrides=["seed=1"], not_comparable=[limit]),
        Made(trials=[0.4, "no_model"], model="big", benchmark="sums", **base),
        Made(trials=["infra_error"], agent="a|b", overrides=["+agent.model=x/y"]),
        Made(trials=[1.0], agent="a|b"),
    )
    assert collect(folder).problems == []
    assert board(folder) == [
        "## oracle",
        "| model | hello | sums |",
        "| --- | ---: | ---: |",
        "| nano | 0.6000 ± 0.1000, n=2 (5/6); - (planned, 0/3); - (2 cells skipped, 0/6); 0.9000 (1/1)[^1] |  |",
        "| big |  | 0.3000 (1/2)[^2] |",
        "Cells of one mean differ in: seed=1, seed=2",
        r"## a\|b agent.model=x/y",
        "| model | hello |",
        "| --- | ---: |",
        "| nano | - (infra_error, 0/1) |",
        r"## a\|b",
        "| model | hello |",
        "| --- | ---: |",
        "| nano | 1.0000 (1/1) |",
        f"[^1]: not comparable: {limit} (cell 5)",
        "[^2]: mixed: a trial without a usable model counts as the base model's zero-shot score (cell 6)",
    ]
    assert "sample standard deviation / √n" in (folder / "leaderboard.md").read_text()


def test_the_same_figures_for_machines(tmp_path):
    made = [Made(trials=[value], overrides=["attempts=1", f"seed={value}"], gpus=1) for value in (0.25, 0.5, 0.75)]
    folder = make_sweep(tmp_path / "s", *made, Made(trials=[], expected=2, state="planned"))
    collect(folder)
    found = json.loads((folder / "metrics.json").read_text())
    assert found["leaderboard"][0] == {
        "agent": "oracle",
        "model": "nano",
        "benchmark": "hello",
        "mean": 0.5,
        "standard_error": 0.25 / math.sqrt(3),
        "n_cells": 3,
        "n_scored": 3,
        "n_expected": 3,
        "unscored": None,
        "comparable": True,
        "notes": [],
        "cells": [0, 1, 2],
        "differ_in": ["seed=0.25", "seed=0.5", "seed=0.75"],
    }
    assert (found["leaderboard"][1]["unscored"], found["leaderboard"][1]["mean"]) == ("planned", None)
    totals = ("n_cells", "n_trials", "n_scored", "n_expected", "cost_usd", "gpu_hours")
    assert [found[key] for key in totals] == [4, 3, 3, 5, 0.75, 0.05]


def test_what_the_command_prints(tmp_path):
    whole = collect(make_sweep(tmp_path / "whole", Made()))
    assert (whole.complete, whole.headline) == (True, "1 cell, 2 trials, 2/2 planned trials scored")
    part = collect(make_sweep(tmp_path / "part", Made(), Made(trials=[1.0, None], state="running")))
    assert (part.complete, part.headline) == (False, "2 cells, 3 trials, 3/4 planned trials scored, 1 problem")
    assert not collect(make_sweep(tmp_path / "errors", Made(trials=["infra_error"]))).complete
    assert not collect(make_sweep(tmp_path / "planned", Made(trials=[], state="planned"))).complete


def test_footnotes_name_many_cells_briefly(tmp_path):
    made = [Made(trials=[0.5], not_comparable=["x"] if number != 3 else []) for number in range(6)]
    folder = make_sweep(tmp_path / "s", *made)
    collect(folder)
    assert board(folder)[-1] == "[^1]: not comparable: x (cells 0-2, 4-5)"


def test_one_cells_folder(tmp_path):
    folder = make_cell(tmp_path / "cell", Made(trials=[0.5, 0.25], overrides=["seed=1"]), number=7)
    collected = collect(folder)
    assert (collected.n_cells, collected.complete) == (1, True)
    assert [lines(folder)[0][key] for key in ("number", "cell_id", "overrides", "final")] == [
        "0",
        cell_id(7),
        "seed=1",
        "0.375",
    ]


def test_a_cell_that_really_ran(ptb):
    assert ptb("benchmark=hello", "agent=oracle", "attempts=2").code == 0
    cell = only_cell()
    collected = collect(cell.folder)
    assert (collected.complete, collected.n_trials, collected.problems) == (True, 2, [])
    found = [json.loads(line) for line in (cell.folder / "results.jsonl").read_text().splitlines()]
    assert [{key: one[key] for key in cell.result["trials"][0]} for one in found] == cell.result["trials"]
    assert board(cell.folder)[-1] == "| none | 1.0000 (2/2) |"
    before = (cell.folder / "results.jsonl").read_bytes()
    (cell.folder / "result.json").unlink()
    assert collect(cell.folder).problems == ["cell 0: is finished and has no result.json; trials over: 2 of 2"]
    assert (cell.folder / "results.jsonl").read_bytes() == before


def test_a_sweep_that_really_ran(ptb):
    """Collected by the sweep itself at its end, and to the same bytes by a later collection."""
    assert ptb("-m", "benchmark=hello", "agent=oracle,nop", "seed=1,2", "hydra.sweep.dir=s").code == 0
    folder = Path("s")
    first = {name: (folder / name).read_bytes() for name in OUTPUTS}
    assert outputs(folder) == first
    assert [line["final"] for line in lines(folder)] == ["1.0", "1.0", "0.0", "0.0"]
    assert "| none | 1.0000 ± 0.0000, n=2 (2/2) |" in board(folder)


def test_the_kit_makes_what_runners_make(ptb, tmp_path):
    assert ptb("benchmark=hello", "agent=oracle").code == 0
    real, made = only_cell().folder, make_cell(tmp_path / "made", Made(trials=[1.0]))

    def keys(value: Any, prefix: str = "") -> set[str]:
        inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
        return {prefix}.union(*(keys(child, f"{prefix}.{key}") for key, child in inner))

    for name in ("result.json", "status.json", "job/hello__001/result.json"):
        of_kit, of_runner = (keys(json.loads((folder / name).read_text())) for folder in (made, real))
        assert {key for key in of_kit - of_runner if not key.startswith(".verifier_result")} == set(), name
    of_kit, of_runner = (keys(yaml.safe_load((folder / "cell.yaml").read_text())["config"]) for folder in (made, real))
    assert of_kit <= of_runner


# --- Only the cells' files decide ---------------------------------------------------------------------


@pytest.fixture
def varied(tmp_path: Path) -> Path:
    """A sweep with cells in every state, one of them damaged."""
    folder = make_sweep(
        tmp_path / "varied",
        Made(trials=[0.5, "infra_error", "no_model"], overrides=["seed=1"]),
        Made(trials=[0.25], overrides=["seed=2"], gpus=1, not_comparable=["shorter"]),
        Made(trials=[1.0, None], state="running"),
        Made(trials=[1.0, "cancelled"], state="cancelled", saved=False),
        Made(trials=[], expected=2, state="planned"),
        Made(trials=[], expected=2, state="failed", agent="codex"),
        Made(agent="codex"),
    )
    (folder / "6" / "result.json").write_text("{")
    return folder


def test_collecting_again_gives_the_same_bytes_and_touches_no_cell(varied):
    def cells() -> dict[str, tuple[int, int]]:
        inside = [path for path in varied.rglob("*") if path.parent != varied]
        return {str(path): (path.stat().st_mtime_ns, path.stat().st_ino) for path in inside}

    before = cells()
    first = outputs(varied)
    assert outputs(varied) == first
    assert cells() == before
    assert {path.name for path in varied.iterdir()} == {*"0123456", "sweep.yaml", *OUTPUTS}


def test_where_and_when_does_not_matter(varied, tmp_path, monkeypatch):
    first = outputs(varied)
    moved = varied.rename(tmp_path / "elsewhere")
    for path in moved.rglob("*"):
        os.utime(path, (1, 1))
    monkeypatch.setenv("TZ", "Asia/Kathmandu")
    assert outputs(moved) == first
    monkeypatch.chdir(moved)
    assert {path.name: path.read_bytes() for path in collect(Path(".")).paths} == first
    for name, content in first.items():
        assert str(tmp_path).encode() not in content, name


def test_a_sweep_collected_from_a_copy_is_the_same(varied, tmp_path):
    shutil.copytree(varied, tmp_path / "copy")
    assert outputs(tmp_path / "copy") == outputs(varied)


def test_a_change_is_noticed_even_if_size_and_time_stay(tmp_path):
    folder = make_sweep(tmp_path / "s", Made(trials=[0.5]), Made(trials=[0.5]))
    first, path = outputs(folder), folder / "1" / "result.json"
    before = path.stat()
    path.write_text(path.read_text().replace("0.5,", "0.6,"))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert (path.stat().st_size, path.stat().st_mtime_ns) == (before.st_size, before.st_mtime_ns)
    assert outputs(folder) != first
    assert [line["final"] for line in lines(folder)] == ["0.5", "0.6"]


def test_what_an_earlier_collection_left_does_not_matter(varied):
    first = outputs(varied)
    for name in OUTPUTS:
        (varied / name).write_bytes(b"\0 nonsense")
    assert outputs(varied) == first


# --- Damage -------------------------------------------------------------------------------------------

DAMAGED = {
    "result.json": [
        ("", "result.json: not valid JSON"),
        ("{", "result.json: not valid JSON"),
        ("[]", "result.json: Input should be a valid dictionary"),
        ("null", "result.json: Input should be a valid dictionary"),
        ("[" * 100_000, "result.json: not valid JSON"),
        ('{"x": NaN}', "NaN is not a finite number"),
        ('{"x": 1e999}', "1e999 is not a finite number"),
        (b"\xff\xfe\x00", "result.json: not valid JSON"),
        ({"schema_version": 2}, "result.json: schema_version"),
        ({"benchmark": "other"}, "result.json: is of benchmark other, the cell's is hello"),
        ({"trials": {}}, "result.json: trials: Input should be a valid list"),
        ({"trials__0__outcome": "perfect"}, "result.json: trials.0.outcome"),
        ({"trials__0__reward": "0.5"}, "result.json: trials.0.reward"),
        ({"trials__0__reward": True}, "result.json: trials.0.reward"),
        ({"trials__0__reward": None}, "trial hello__001 is scored and has the reward None"),
        ({"trials__1__reward": 0.0}, "trial hello__002 is infra_error and has the reward 0.0"),
        ({"trials__1__durations_sec": None}, "result.json: trials.1.durations_sec"),
        ({"score__raw": 0.9}, "its score does not agree with its trials"),
        ({"score__raw": None}, "its score does not agree with its trials"),
        ({"score__n_scored": 2}, "its score does not agree with its trials"),
        ({"score__final": "high"}, "result.json: score.final"),
        ({"provenance": None}, "result.json: provenance"),
    ],
    "status.json": [
        ("{", "status.json: not valid JSON"),
        ("[]", "status.json: Input should be"),
        ({"attempts__expected": "two"}, "status.json: attempts.expected"),
        ({"state": 3}, "status.json: state"),
    ],
    "cell.yaml": [
        ("[", "cell.yaml: not valid YAML"),
        ("config: {}", "cell.yaml: has no config.benchmark"),
        ("config: {benchmark: {gpus: many}}", "cell.yaml: gpus"),
        (b"\xff\xff", "cell.yaml: not valid YAML"),
    ],
}


@pytest.mark.parametrize(
    ("name", "damage", "said"),
    [(name, damage, said) for name, cases in DAMAGED.items() for damage, said in cases],
    ids=range(sum(map(len, DAMAGED.values()))),
)
def test_a_damaged_cell_is_listed_and_harms_no_other(tmp_path, name, damage, said):
    folder = make_sweep(tmp_path / "s", Made(), Made(trials=[0.5, "infra_error"]))
    path = folder / "1" / name
    if isinstance(damage, dict):
        edit(path, **damage)
    else:
        path.write_bytes(damage if isinstance(damage, bytes) else damage.encode())
    collected = collect(folder)
    problem = _only_problem(collected)
    assert problem.startswith("cell 1: ")
    assert said in problem
    assert str(tmp_path) not in problem
    assert "## Not collected" in board(folder)
    assert lines(folder)[0]["final"] == "1.0"
    if name == "result.json":
        assert lines(folder)[1]["final"] == ""
        assert "- (unreadable, 0/2)" in board(folder)[3]
        assert '"number": 1' not in (folder / "results.jsonl").read_text()


def _only_problem(collected: Collected) -> str:
    assert len(collected.problems) == 1, collected.problems
    assert not collected.complete
    return collected.problems[0]


@pytest.mark.parametrize("name", ["result.json", "status.json", "cell.yaml", "job"])
def test_what_may_not_be_read_is_listed(tmp_path, monkeypatch, name):
    """By a permission, or a disk's fault; tests may run as root, which may read everything."""
    folder = make_sweep(tmp_path / "s", Made(), Made(trials=[0.5], saved=name != "job"))

    def refuse(original: Any) -> Any:
        def call(path: Path, *args: Any) -> Any:
            if path == folder / "1" / name:
                raise PermissionError(13, "Permission denied", str(path))
            return original(path, *args)

        return call

    for method in ("read_bytes", "iterdir", "exists"):
        monkeypatch.setattr(Path, method, refuse(getattr(Path, method)))
    assert _only_problem(collect(folder)).startswith(f"cell 1: {name}: Permission denied")


@pytest.mark.parametrize("name", ["result.json", "status.json", "cell.yaml"])
def test_a_folder_in_a_files_place_is_listed(tmp_path, name):
    folder = make_sweep(tmp_path / "s", Made())
    (folder / "0" / name).unlink()
    (folder / "0" / name).mkdir()
    assert f"{name}: Is a directory" in _only_problem(collect(folder))


def test_a_cells_folder_that_is_gone_is_listed(tmp_path):
    folder = make_sweep(tmp_path / "s", Made(), Made(expected=2))
    shutil.rmtree(folder / "1")
    assert _only_problem(collect(folder)) == "cell 1: its folder is missing"
    assert "- (missing, 0/?)" in board(folder)[3]


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=5), inner, max_size=2),
    max_leaves=4,
)


@given(data=st.data())
@settings(max_examples=150, deadline=None)
def test_no_content_ends_a_collection(tmp_path_factory, data):
    """Any value in any place of any file: the other cell is collected, and what is written is whole."""
    folder = make_sweep(tmp_path_factory.mktemp("any") / "s", Made(), Made(trials=[0.5, "no_model", "infra_error"]))
    name = data.draw(st.sampled_from(["result.json", "status.json", "job/hello__001/result.json"]))
    path = folder / "1" / name
    if name.startswith("job"):
        (folder / "1" / "result.json").unlink()
    content = json.loads(path.read_text())
    place = content
    while True:
        key = data.draw(st.sampled_from(sorted(place) if isinstance(place, dict) else range(len(place))))
        if not isinstance(place[key], dict | list) or not place[key] or data.draw(st.booleans()):
            break
        place = place[key]
    place[key] = data.draw(json_values)
    path.write_text(json.dumps(content))
    collected = collect(folder)
    assert lines(folder)[0]["final"] == "1.0"
    for line in (folder / "results.jsonl").read_text().splitlines():
        json.loads(line, parse_constant=pytest.fail)
    json.loads((folder / "metrics.json").read_text(), parse_constant=pytest.fail)
    assert collected.n_scored >= 2


# --- Cells that are not over --------------------------------------------------------------------------


@pytest.mark.parametrize("state", ["running", "finished", "cancelled", "failed"])
def test_a_killed_runners_trials_are_collected_from_their_folders(tmp_path, state):
    base = {"missing_score": "base_model", "zero_shot": {"nano": 0.125}}
    made = Made(trials=[0.5, "no_model", "infra_error", None], expected=6, **base)
    whole = make_sweep(tmp_path / "whole", made)
    killed = make_sweep(tmp_path / "killed", Made(**vars(made) | {"state": state, "saved": False}))
    collect(whole)
    before = sorted(killed.rglob("*"))
    problem = _only_problem(collect(killed))
    assert "trials over: 3 of 6, 1 begun and not over" in problem
    assert (killed / "results.jsonl").read_text() == (whole / "results.jsonl").read_text()
    scores = ("raw", "final", "final_source", "n_expected", "n_scored")
    assert [lines(killed)[0][key] for key in scores] == [lines(whole)[0][key] for key in scores]
    assert lines(killed)[0]["comparable"] == ""
    assert set(killed.rglob("*")) - set(before) == {killed / name for name in OUTPUTS}


def test_a_running_cell_shows_what_is_over_and_keeps_what_was_judged(tmp_path):
    """Resumed after result.json was written: trial 1 has been judged, 2 is run again, 3 is new."""
    made = Made(trials=[0.5, "infra_error", 0.25], state="cancelled", not_comparable=["shorter"])
    folder = make_sweep(tmp_path / "s", made)
    cell = folder / "0"
    saved = json.loads((cell / "result.json").read_text())
    saved["trials"] = saved["trials"][:2]
    saved["trials"][0] |= {"outcome": "flagged", "judgements": {"contamination": True}}
    saved["score"] |= {"raw": None, "final": None, "final_source": None, "n_scored": 0}
    (cell / "result.json").write_text(json.dumps(saved))
    edit(cell / "status.json", state="running")
    again = json.loads((cell / "job" / "hello__003" / "result.json").read_text()) | {
        "trial_name": "hello__002",
        "finished_at": "2026-01-02T04:00:00+00:00",
        "verifier_result": {"rewards": {"reward": 0.75}},
    }
    (cell / "job" / "hello__002" / "result.json").write_text(json.dumps(again))
    assert "still running" in _only_problem(collect(folder))
    found = [json.loads(line) for line in (folder / "results.jsonl").read_text().splitlines()]
    assert [(one["outcome"], one["reward"]) for one in found] == [("flagged", 0.5), ("scored", 0.75), ("scored", 0.25)]
    assert found[0]["judgements"] == {"contamination": True}
    assert (lines(folder)[0]["raw"], lines(folder)[0]["comparable"]) == ("0.5", "false")


def test_a_damaged_result_is_not_replaced_by_the_trials(tmp_path):
    """It may hold verdicts of judges: without them a flagged trial would count as scored."""
    folder = make_sweep(tmp_path / "s", Made(trials=[1.0]))
    (folder / "0" / "result.json").write_text("{")
    assert collect(folder).n_scored == 0


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{", "job/hello__002/result.json: not valid JSON"),
        ("[]", None),  # a record says that the trial left no result
        ('{"exception_info": 3}', "job/hello__002/result.json: not in Harbor's form"),
        ('{"agent_result": {"cost_usd": "much"}}', "job/hello__002/result.json: cost_usd"),
    ],
)
def test_a_damaged_trial_of_a_killed_runner_is_listed(tmp_path, content, said):
    folder = make_sweep(tmp_path / "s", Made(trials=[0.5, 0.5], state="running"))
    (folder / "0" / "job" / "hello__002" / "result.json").write_text(content)
    problems = collect(folder).problems
    assert not said or any(said in problem for problem in problems)
    assert (lines(folder)[0]["n_scored"], lines(folder)[0]["final"]) == ("1", "0.5")


def test_without_the_benchmarks_policy_a_killed_cell_has_no_score(tmp_path):
    made = Made(trials=[0.5, "no_model"], state="running", missing_score="base_model", zero_shot={"nano": 0.1})
    folder = make_sweep(tmp_path / "s", made)
    (folder / "0" / "cell.yaml").unlink()
    assert _only_problem(collect(folder)) == "cell 0: cell.yaml: is missing"
    assert (lines(folder)[0]["n_scored"], lines(folder)[0]["final"]) == ("0", "")


def test_a_cell_that_was_widened_and_not_run_since_says_so(tmp_path):
    folder = make_sweep(tmp_path / "s", Made())
    write_sweep(folder, [entry(0, Made()) | {"id": cell_id(9)}])
    assert f"its result is of cell {cell_id(0)}: it was widened to {cell_id(9)}" in _only_problem(collect(folder))
    assert lines(folder)[0]["cell_id"] == cell_id(9)


def test_a_long_cell_yaml_in_which_the_model_stands_first_is_read_whole(tmp_path):
    folder = make_sweep(tmp_path / "s", Made(gpus=2))
    path = folder / "0" / "cell.yaml"
    content = yaml.safe_load(path.read_text())
    content["config"] = dict(reversed(content["config"].items()))
    path.write_text(yaml.safe_dump(content, sort_keys=False))
    assert collect(folder).complete
    assert float(lines(folder)[0]["gpu_hours"]) == 2 * 120 / 3600


# --- Folders that cannot be collected -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("nothing", "", "neither sweep.yaml nor cell.yaml"),
        ("sweep.yaml", "[", "not readable"),
        ("sweep.yaml", "", "sweep.yaml: cells: Input should be a valid list"),
        ("sweep.yaml", "cells: [{number: 0}]", "sweep.yaml: cells: 0.id"),
        ("cell.yaml", "[", "cell.yaml: not valid YAML"),
        ("cell.yaml", "{}", "not in the form of a cell"),
        ("cell.yaml", "[]", "not in the form of a cell"),
    ],
)
def test_what_is_no_sweep_is_refused(tmp_path, name, content, said):
    (tmp_path / name).write_text(content)
    with pytest.raises(UsageError) as caught:
        collect(tmp_path)
    assert said in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_a_folder_that_cannot_be_written_to_is_told(tmp_path):
    folder = make_sweep(tmp_path / "s", Made())
    (folder / "results.csv").mkdir()
    with pytest.raises(UsageError, match=r"results\.csv: cannot be written: Is a directory"):
        collect(folder)
    assert not list(folder.glob(".*.tmp"))


# --- Means --------------------------------------------------------------------------------------------

rewards = st.floats(0, 1) | st.sampled_from([0.0, 1.0])


@given(groups=st.dictionaries(st.sampled_from("abc"), st.lists(rewards, min_size=1, max_size=6), min_size=1))
@settings(max_examples=40, deadline=None)
def test_means_and_standard_errors_against_another_computation(tmp_path_factory, groups):
    made = [Made(trials=[reward], model=model) for model, finals in groups.items() for reward in finals]
    folder = make_sweep(tmp_path_factory.mktemp("means") / "s", *made)
    for found in standings(read_rows(folder)):
        finals = groups[found["model"]]
        n = len(finals)
        mean = math.fsum(finals) / n
        assert found["n_cells"] == found["n_scored"] == n
        assert found["mean"] == pytest.approx(mean, abs=1e-12)
        if n == 1:
            assert found["standard_error"] is None
        else:
            # The squared error of a mean from all pairs: sum over i < j of (x_i - x_j)^2 / (n^2 (n - 1))
            pairs = math.fsum((a - b) ** 2 for i, a in enumerate(finals) for b in finals[:i])
            assert found["standard_error"] == pytest.approx(math.sqrt(pairs / (n * n * (n - 1))), abs=1e-9)
