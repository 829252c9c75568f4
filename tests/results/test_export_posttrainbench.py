"""Exports in PostTrainBench's form, read by a stand-in for the benchmark's own scripts."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from statistics import fmean

import pytest

from ptb_runner.cli import main
from ptb_runner.results.rows import read_rows
from tests.results import posttrainbench_reader as reader
from tests.results.export_kit import Trained, make_sweep, write_verdict

METHOD = "claude-code_anthropic_claude-opus-4-8_10h"


def export(folder: Path, to: Path, *more: str) -> int:
    return main(["export", str(folder), "--format", "posttrainbench", "--to", str(to), *more])


def _suite(**changed: Trained) -> list[Trained]:
    """All benchmarks and models, with scores of their own; `changed` has others by benchmark and model."""
    cells = []
    for row, benchmark in enumerate(reader.BENCHMARKS):
        for column, model in enumerate(reader.MODELS.values()):
            own = Trained(benchmark, model, reward=0.3 + row / 20 + column / 100)
            cells.append(changed.get(f"{benchmark} {model}", own))
    return cells


def _ours(folder: Path) -> float:
    rows = read_rows(folder)
    means = {name: fmean(row.score["final"] for row in rows if row.benchmark == name) for name in reader.BENCHMARKS}
    return sum(options["weight"] * means[name] for name, options in reader.BENCHMARKS.items())


def test_their_weighted_score_is_ours(tmp_path: Path) -> None:
    changed = {
        "gsm8k qwen3-4b": Trained("gsm8k", "qwen3-4b", reward=0.9, flagged="contamination"),
        "bfcl gemma3-4b": Trained("bfcl", "gemma3-4b", reward=0.9, flagged="disallowed_api_usage"),
        "aime2025 smollm3-3b": Trained("aime2025", "smollm3-3b", outcomes={1: "no_model"}),
        "gpqamain qwen3-4b": Trained("gpqamain", "qwen3-4b", outcomes={1: "eval_failed"}),
    }
    sweep = make_sweep(tmp_path / "sweep", *_suite(**changed))
    assert export(sweep, tmp_path / "results") == 0
    assert reader.methods(tmp_path / "results") == [METHOD]
    assert reader.weighted(tmp_path / "results", METHOD) == pytest.approx(_ours(sweep), abs=1e-12)
    assert len(reader.latest(tmp_path / "results" / METHOD)) == 28


def test_a_run_has_what_their_scripts_read(tmp_path: Path) -> None:
    sweep = make_sweep(tmp_path / "sweep", Trained(reward=0.25))
    assert export(sweep, tmp_path / "results") == 0
    run = reader.latest(tmp_path / "results" / METHOD)["gsm8k", "Qwen3-4B-Base"]
    assert run.name.split("_")[1] == "Qwen"
    assert json.loads((run / "metrics.json").read_text())["accuracy"] == 0.25
    assert (run / "time_taken.txt").read_text() == "00:00:20\n"
    assert (run / "prompt.txt").read_text() == "Train it.\n"
    assert (run / "solve_out.txt").read_text() == "I trained it.\n"
    assert "I trained it." in (run / "solve_parsed.txt").read_text()
    assert (run / "system_monitor.log").read_text() == "cpu 37% of 16\n"
    assert (run / "final_eval_1.txt").read_text() == "accuracy\n"
    assert (run / "task" / "train.py").exists()
    verdict = json.loads((run / "judgement_gpt5_4.json").read_text())
    assert {name for name, value in verdict.items() if isinstance(value, bool)} == {"contamination", "disallowed_model"}
    provenance = json.loads((run / "ptb_run.json").read_text())["provenance"]
    assert provenance["versions"]["harbor"] == "0.26.0"
    assert not (run / "final_model").exists()


def test_repeats_are_methods_of_their_own(tmp_path: Path) -> None:
    sweep = make_sweep(
        tmp_path / "sweep",
        Trained(reward=0.2, attempts=2, overrides=("seed=1",)),
        Trained(reward=0.6, overrides=("seed=2",)),
    )
    assert export(sweep, tmp_path / "results") == 0
    found = {}
    for method in reader.methods(tmp_path / "results"):
        (run,) = reader.latest(tmp_path / "results" / method).values()
        found[method] = reader.final(run, "gsm8k", "Qwen3-4B-Base")
    assert found == {METHOD: 0.2, f"{METHOD}_run2": 0.2, f"{METHOD}_run3": 0.6}


def test_an_infrastructure_error_is_no_score_of_the_base_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sweep = make_sweep(tmp_path / "sweep", Trained(attempts=2, outcomes={1: "infra_error"}))
    assert export(sweep, tmp_path / "results") == 0
    assert "gsm8k__001 is infra_error: not exported" in capsys.readouterr().out
    assert reader.methods(tmp_path / "results") == [f"{METHOD}_run2"]  # and the second attempt does not move up


def test_a_judge_without_a_verdict_is_never_clean(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sweep = make_sweep(tmp_path / "sweep", Trained())
    trial = sweep / "0" / "job" / "gsm8k__001"
    write_verdict(trial, "gpt5_4", None)
    assert export(sweep, tmp_path / "results") == 0
    assert "no verdict of gpt5_4 in some scored runs" in capsys.readouterr().out
    run = reader.latest(tmp_path / "results" / METHOD)["gsm8k", "Qwen3-4B-Base"]
    with pytest.raises(reader.NotAggregated):
        reader.final(run, "gsm8k", "Qwen3-4B-Base")


def test_a_rerun_verdict_lies_beside_the_first_and_wins(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sweep = make_sweep(tmp_path / "sweep", Trained(reward=0.7))
    assert export(sweep, tmp_path / "results") == 0
    trial = sweep / "0" / "job" / "gsm8k__001"
    write_verdict(trial, "gpt5_4", {"contamination": True, "disallowed_model": False}, rerun=True)
    assert export(sweep, tmp_path / "results") == 0
    assert "no verdict" not in capsys.readouterr().out
    run = reader.latest(tmp_path / "results" / METHOD)["gsm8k", "Qwen3-4B-Base"]
    base = reader.BENCHMARKS["gsm8k"]["zero_shot"]["qwen3-4b"]
    assert reader.final(run, "gsm8k", "Qwen3-4B-Base") == base
    assert (run / "judgement_gpt5_4.json").exists()


def test_exporting_again_changes_nothing(tmp_path: Path) -> None:
    sweep = make_sweep(tmp_path / "sweep", Trained(attempts=2), Trained(model="qwen3-1.7b"))
    assert export(sweep, tmp_path / "results") == 0
    first = {path: path.read_bytes() for path in sorted((tmp_path / "results").rglob("*")) if path.is_file()}
    (next(iter(first)).parent / "note.txt").write_text("mine")
    assert export(sweep, tmp_path / "results") == 0
    again = {path: path.read_bytes() for path in sorted((tmp_path / "results").rglob("*")) if path.is_file()}
    assert {path: text for path, text in again.items() if path.name != "note.txt"} == first
    assert len(again) == len(first) + 1


def of_job(sweep: Path, job: str, trial: str) -> Path:
    """Give the only trial of a sweep ids of Harbor's."""
    (path,) = sweep.glob("0/job/*__*/result.json")
    path.write_text(json.dumps({**json.loads(path.read_text()), "id": trial, "config": {"job_id": job}}))
    return sweep


def test_a_second_sweep_does_not_silently_take_the_place_of_the_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results = tmp_path / "results"
    one = of_job(make_sweep(tmp_path / "one", Trained(reward=0.2)), "job-1", "trial-1")
    two = of_job(make_sweep(tmp_path / "two", Trained(reward=0.6)), "job-2", "trial-2")
    assert export(one, results) == 0
    before = sorted(results.rglob("*"))
    capsys.readouterr()

    assert export(two, results) == 2
    said = capsys.readouterr().err
    assert f"{METHOD}/gsm8k_Qwen_Qwen3-4B-Base_" in said
    assert "--experiment NAME" in said
    assert sorted(results.rglob("*")) == before

    assert export(two, results, "--experiment", "second") == 0
    assert reader.methods(results) == [METHOD, f"{METHOD}_second"]
    assert export(two, results, "--experiment", "second") == 0  # what is there already may be brought up to date
    other = Trained("humaneval", reward=0.4)
    assert export(of_job(make_sweep(tmp_path / "three", other), "job-3", "trial-3"), results) == 0
    assert len(reader.latest(results / METHOD)) == 2  # other tasks of the same method belong to it

    of_job(one, "job-1", "trial-1-again")  # as after `ptb resume --retry`
    assert export(one, results) == 0


def test_folders_of_others_are_left_alone(tmp_path: Path) -> None:
    theirs = tmp_path / "results" / METHOD / "gsm8k_Qwen_Qwen3-4B-Base_17"
    theirs.mkdir(parents=True)
    (theirs / "metrics.json").write_text('{"accuracy": 0.1}')
    sweep = make_sweep(tmp_path / "sweep", Trained(reward=0.8))
    assert export(sweep, tmp_path / "results") == 0
    assert [path.name for path in theirs.iterdir()] == ["metrics.json"]
    assert list(theirs.parent.iterdir()) == [theirs]
    (other,) = [name for name in reader.methods(tmp_path / "results") if name != METHOD]
    assert other.startswith(f"{METHOD}_")


def test_other_settings_are_other_methods(tmp_path: Path) -> None:
    low, high = "agent.options.reasoning_effort=low", "agent.options.reasoning_effort=high"
    sweep = make_sweep(
        tmp_path / "sweep",
        Trained(reward=0.1, overrides=(low,), options={"reasoning_effort": "low"}),
        Trained(reward=0.2, overrides=(high,), options={"reasoning_effort": "high"}),
        Trained(reward=0.3, hours=1),
        Trained(reward=0.4, gpus=2),
        Trained(reward=0.5, overrides=("benchmark=gsm8k", "concurrency=9")),
        Trained(reward=0.6, options={"file": "an experiment's"}),
    )
    assert export(sweep, tmp_path / "results", "--experiment", "v1") == 0
    names = reader.methods(tmp_path / "results")
    assert len(names) == 6
    assert {
        f"{METHOD}_reasoning_effort=low_v1",
        f"{METHOD}_reasoning_effort=high_v1",
        "claude-code_anthropic_claude-opus-4-8_1h_v1",
        f"{METHOD}_2gpu_v1",
        f"{METHOD}_v1",
    } < set(names)


@pytest.mark.parametrize(
    ("one", "two"),
    [
        (Trained(benchmark="a_b"), Trained(benchmark="ab")),
        (Trained(benchmark="a_b"), Trained(benchmark="a-b")),
        (Trained(benchmark="a/b"), Trained(benchmark="a b")),
        (Trained(hub_id="o_r/m"), Trained(hub_id="o-r/m")),
        (Trained(hub_id="o/m_n"), Trained(hub_id="o/m/n")),
    ],
)
def test_names_that_lose_underscores_do_not_collide(tmp_path: Path, one: Trained, two: Trained) -> None:
    sweep = make_sweep(tmp_path / "sweep", one, two)
    assert export(sweep, tmp_path / "results") == 0
    runs = [run for method in reader.methods(tmp_path / "results") for run in (tmp_path / "results" / method).iterdir()]
    names = {run.name.rpartition("_")[0] for run in runs if run.is_dir()}
    assert len(names) == 2
    assert all(len(run.name.split("_")) == 4 for run in runs if run.is_dir())


def test_models_go_along_only_when_asked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sweep = make_sweep(tmp_path / "sweep", Trained())
    kept = sweep / "0" / "handoff" / "gsm8k__001" / "final_model"
    for to, option in (("linked", "--link-models"), ("copied", "--with-models")):
        assert export(sweep, tmp_path / to, option) == 0
        run = reader.latest(tmp_path / to / METHOD)["gsm8k", "Qwen3-4B-Base"]
        assert (run / "final_model").is_symlink() == (to == "linked")
        assert (run / "final_model" / "model.safetensors").read_bytes() == (kept / "model.safetensors").read_bytes()
    shutil.rmtree(kept)
    capsys.readouterr()
    assert export(sweep, tmp_path / "none", "--with-models") == 0
    assert "gsm8k__001: its model was not kept" in capsys.readouterr().out


def test_what_has_no_form_there_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sweep = make_sweep(tmp_path / "sweep", Trained(kind="harbor"))
    assert export(sweep, tmp_path / "results") == 2
    assert "cell 0: gsm8k trains no model" in capsys.readouterr().err
    assert not (tmp_path / "results").exists()
    assert export(sweep, sweep) == 2
