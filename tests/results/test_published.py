"""PostTrainBench's result folders are read like sweeps: our exports as what they were, and the benchmark's own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ptb_runner.cli import main
from ptb_runner.results.rows import read_rows
from tests.results.export_kit import CLEAN, Trained, make_sweep
from tests.results.posttrainbench_reader import BENCHMARKS


def _run(folder: Path, accuracy: float | None, **verdicts: bool) -> Path:
    folder.mkdir(parents=True)
    (folder / "time_taken.txt").write_text("9:05:07\n")
    if accuracy is not None:
        (folder / "metrics.json").write_text(json.dumps({"accuracy": accuracy, "stderr": 0.01}))
    for judge, fields in CLEAN.items():
        said = {name: verdicts.get(name, False) for name in fields}
        (folder / f"judgement_{judge}.json").write_text(json.dumps(said))
    return folder


def test_our_exports_read_back_as_the_cells_that_they_were(tmp_path: Path) -> None:
    sweep = make_sweep(
        tmp_path / "sweep",
        Trained(reward=0.5, attempts=2, outcomes={2: "no_model"}),
        Trained(model="qwen3-1.7b", flagged="contamination"),
    )
    assert main(["export", str(sweep), "--format", "posttrainbench", "--to", str(tmp_path / "results")]) == 0
    before = {(row.cell_id, row.model): row for row in read_rows(sweep)}
    rows = read_rows(tmp_path / "results")
    assert len(rows) == 2
    for row in rows:
        own = before[row.cell_id, row.model]
        assert row.score == own.score
        assert row.benchmark_options == own.benchmark_options
        assert [trial["outcome"] for trial in row.trials] == [trial["outcome"] for trial in own.trials]
        assert row.result["provenance"] == own.result["provenance"]
        assert all(
            (tmp_path / "results" / row.folder / one["trial_dir"] / "ptb_run.json").exists() for one in row.trials
        )


def test_the_benchmarks_own_runs_are_read(tmp_path: Path) -> None:
    method = tmp_path / "results" / "codex_non_api_gpt-5_10h_run1"
    _run(method / "gsm8k_Qwen_Qwen3-4B-Base_17", 0.1)
    _run(method / "gsm8k_Qwen_Qwen3-4B-Base_101", 0.7)  # the newest counts
    _run(method / "bfcl_google_gemma-3-4b-pt_18", 0.9, contamination=True)
    _run(method / "humaneval_Qwen_Qwen3-1.7B-Base_19", None)
    rows = {row.benchmark: row for row in read_rows(tmp_path / "results")}
    assert {row.model for row in rows.values()} == {"qwen3-4b", "gemma3-4b", "qwen3-1.7b"}
    assert {row.agent for row in rows.values()} == {method.name}
    assert rows["gsm8k"].score["final"] == 0.7
    assert rows["gsm8k"].trials[0]["durations_sec"]["agent"] == 9 * 3600 + 5 * 60 + 7
    assert rows["bfcl"].outcome == "flagged"
    assert rows["bfcl"].score["final"] == BENCHMARKS["bfcl"]["zero_shot"]["gemma3-4b"]
    assert rows["humaneval"].outcome == "eval_failed"
    assert rows["humaneval"].score["final"] == BENCHMARKS["humaneval"]["zero_shot"]["qwen3-1.7b"]


def test_a_rerun_verdict_wins(tmp_path: Path) -> None:
    run = _run(tmp_path / "m" / "gsm8k_Qwen_Qwen3-4B-Base_1", 0.7, contamination=True)
    (run / "judgement_gpt5_4_rerun.json").write_text('{"contamination": false, "disallowed_model": false}')
    assert [row.score["final"] for row in read_rows(tmp_path)] == [0.7]


def test_a_damaged_run_is_told_and_is_no_score(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = _run(tmp_path / "results" / "m" / "gsm8k_Qwen_Qwen3-4B-Base_1", 0.7)
    (run / "metrics.json").write_text('{"accuracy": NaN}')
    assert main(["collect", str(tmp_path / "results")]) == 1
    assert "metrics.json: not valid JSON" in capsys.readouterr().out
    assert read_rows(tmp_path / "results")[0].score["raw"] is None


def test_an_export_compares_with_its_sweep_as_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sweep = make_sweep(tmp_path / "sweep", Trained(reward=0.5), Trained(model="qwen3-1.7b", reward=0.25))
    assert main(["export", str(sweep), "--format", "posttrainbench", "--to", str(tmp_path / "results")]) == 0
    assert main(["export", str(sweep), "--bundle"]) == 0
    for other in (tmp_path / "results", tmp_path / "sweep.ptb.tar.gz"):
        capsys.readouterr()
        assert main(["compare", str(sweep), str(other), "--json"]) == 0
        (found,) = json.loads(capsys.readouterr().out)["comparisons"]
        assert found["settings"] == {"differ": [], "unknown": []}
