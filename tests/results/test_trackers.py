"""Exports to trackers, through their real clients, offline."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

import pytest

from ptb_runner.cli import main
from ptb_runner.results.rows import read_rows
from ptb_runner.results.trackers import runs
from tests.results.collect_kit import Made
from tests.results.collect_kit import make_sweep as make_planned
from tests.results.export_kit import Trained, flag, make_sweep


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    return make_sweep(tmp_path / "sweep", Trained(reward=0.5, attempts=2, outcomes={2: "infra_error"}))


def test_a_run_is_a_cell_with_its_provenance(sweep: Path) -> None:
    (run,) = runs(read_rows(sweep))
    assert run.config["agent"] == "claude-code"
    assert run.metrics["final"] == 0.5
    assert run.metrics["coverage"] == 0.5
    assert run.rewards == {1: 0.5}
    assert run.provenance["versions"]["harbor"] == "0.26.0"
    assert len(run.trials.splitlines()) == 2


def test_a_cell_without_trials_is_no_run(tmp_path: Path) -> None:
    assert runs(read_rows(make_planned(tmp_path / "sweep", Made(trials=[], state="planned", expected=1)))) == []


@pytest.mark.parametrize("form", ["wandb", "mlflow"])
def test_a_missing_client_is_told_in_two_lines(
    sweep: Path, tmp_path: Path, form: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, form, None)
    assert main(["export", str(sweep), "--format", form, "--to", str(tmp_path / "out")]) == 2
    assert f"pip install 'ptb-runner[{form}]'" in capsys.readouterr().err


@pytest.mark.export
def test_wandb_offline_runs(sweep: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    to = tmp_path / "out"
    command = ["export", str(sweep), "--format", "wandb", "--to", str(to), "--experiment", "mine"]
    assert main(command) == 0
    (run,) = runs(read_rows(sweep))
    (first,) = to.glob(f"wandb/offline-run-*-{run.id}")
    stored = (first / f"run-{run.id}.wandb").read_bytes()
    for text in (b"gsm8k x qwen3-4b x claude-code", b"coverage", b"reward", b"0.26.0"):
        assert text in stored
    assert "1 new or changed" in capsys.readouterr().out
    assert main(command) == 0
    assert "0 new or changed" in capsys.readouterr().out
    flag(sweep / "0")
    assert main(command) == 0
    (again,) = to.glob("wandb/offline-run-*")  # the same run, written anew
    assert again.name.endswith(run.id)


@pytest.mark.export
def test_mlflow_runs_in_a_folder(sweep: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tracking = importlib.import_module("mlflow.tracking")
    to = tmp_path / "out"
    command = ["export", str(sweep), "--format", "mlflow", "--to", str(to), "--experiment", "mine"]
    assert main(command) == 0
    assert main(command) == 0
    assert "0 new or changed" in capsys.readouterr().out
    client = tracking.MlflowClient(tracking_uri=f"sqlite:///{to / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("mine")
    assert experiment
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.data.params["benchmark"] == "gsm8k"
    assert (run.data.metrics["final"], run.data.metrics["reward"]) == (0.5, 0.5)
    assert run.data.tags["provenance.versions.harbor"] == "0.26.0"
    (path,) = to.glob("artifacts/*/artifacts/provenance.json")
    assert json.loads(path.read_text())["versions"]["harbor"] == "0.26.0"
    flag(sweep / "0")
    assert main(command) == 0
    (again,) = client.search_runs([experiment.experiment_id])
    assert again.info.run_id == run.info.run_id
    assert again.data.metrics["final"] == pytest.approx(0.4185, abs=1e-4)
