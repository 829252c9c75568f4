"""Exports as tables and as Harbor jobs."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest

from ptb_runner.cli import main
from ptb_runner.results.rows import read_rows
from tests.results.collect_kit import Made, make_sweep
from tests.results.export_kit import Trained
from tests.results.export_kit import make_sweep as make_trained


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    cells = [Made(trials=[1.0, 0.5]), Made(trials=["infra_error"], agent="nop", not_comparable=["half the time"])]
    return make_sweep(tmp_path / "sweep", *cells)


def export(folder: Path, form: str, to: Path | str, *more: str) -> int:
    return main(["export", str(folder), "--format", form, "--to", str(to), *more])


def test_csv_has_a_line_a_cell_with_its_provenance(sweep: Path, tmp_path: Path) -> None:
    assert export(sweep, "csv", tmp_path / "out.csv") == 0
    with (tmp_path / "out.csv").open(newline="") as file:
        lines = list(csv.DictReader(file))
    assert [line["final"] for line in lines] == ["0.75", ""]
    assert [line["version_harbor"] for line in lines] == ["0.26.0", "0.26.0"]
    assert [line["not_comparable_because"] for line in lines] == ["", "half the time"]


def test_jsonl_has_a_line_a_trial_with_its_provenance(sweep: Path, tmp_path: Path) -> None:
    assert export(sweep, "jsonl", tmp_path) == 0
    lines = [json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines()]
    assert [line["reward"] for line in lines] == [1.0, 0.5, None]
    assert [line["provenance"]["comparable"] for line in lines] == [True, True, False]


def test_a_dash_prints_the_table_and_nothing_else(sweep: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert export(sweep, "csv", "-") == 0
    assert len(list(csv.DictReader(io.StringIO(capsys.readouterr().out)))) == 2


@pytest.mark.parametrize("form", ["csv", "jsonl"])
def test_a_file_of_somebody_else_is_not_written_over(sweep: Path, tmp_path: Path, form: str) -> None:
    own = tmp_path / "own"
    own.write_text("my thesis")
    assert export(sweep, form, own) == 2
    assert own.read_text() == "my thesis"
    assert [export(sweep, form, tmp_path / "out") for _ in range(2)] == [0, 0]


def test_harbor_jobs_go_along_as_they_are_and_read_back_as_cells(tmp_path: Path) -> None:
    sweep = make_trained(tmp_path / "sweep", Trained(attempts=2), Trained(model="qwen3-1.7b", flagged="contamination"))
    assert [export(sweep, "harbor", tmp_path / "jobs") for _ in range(2)] == [0, 0]
    rows, before = read_rows(tmp_path / "jobs"), read_rows(sweep)
    key = lambda row: row.model  # noqa: E731
    for row, own in zip(sorted(rows, key=key), sorted(before, key=key), strict=True):
        copied, original = tmp_path / "jobs" / row.folder, sweep / own.folder / "job"
        names = {path.relative_to(original) for path in original.rglob("*")}
        assert {path.relative_to(copied) for path in copied.rglob("*")} == names | {Path("ptb_cell.json")}
        assert (row.score, row.benchmark_options) == (own.score, own.benchmark_options)
        assert (row.benchmark, row.agent, row.cell_id) == (own.benchmark, own.agent, own.cell_id)
        assert row.result["provenance"] == own.result["provenance"]
        assert all((copied / trial["trial_dir"]).is_dir() for trial in row.trials)


def test_harbor_jobs_of_others_are_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sweep = make_trained(tmp_path / "sweep", Trained())
    name = f"gsm8k-qwen3-4b-claude-code-{read_rows(sweep)[0].cell_id}"
    (tmp_path / "jobs" / name).mkdir(parents=True)
    assert export(sweep, "harbor", tmp_path / "jobs") == 2
    assert "no export of this cell" in capsys.readouterr().err
    assert list((tmp_path / "jobs" / name).iterdir()) == []


def test_nothing_to_export_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sweep = make_sweep(tmp_path / "sweep", Made(trials=[], state="planned", expected=1))
    assert export(sweep, "csv", tmp_path / "out.csv") == 2
    assert "no trial is over yet" in capsys.readouterr().err
    assert export(tmp_path / "nowhere", "csv", tmp_path / "out.csv") == 2


@pytest.mark.parametrize("form", ["posttrainbench", "csv", "harbor"])
def test_a_place_that_cannot_be_written_is_told(tmp_path: Path, form: str, capsys: pytest.CaptureFixture[str]) -> None:
    sweep = make_trained(tmp_path / "sweep", Trained())
    (tmp_path / "file").write_text("")
    assert export(sweep, form, tmp_path / "file" / "below") == 2
    assert str(tmp_path / "file") in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        ["--format", "csv"],
        ["--format", "csv", "--to", "x", "--experiment", "y"],
        ["--format", "jsonl", "--to", "x", "--with-models"],
        ["--bundle", "--link-models"],
        ["--bundle", "--max-file-mb", "0"],
        ["--to", "x"],
        ["--format", "posttrainbench", "--to", "x", "--experiment", "a/b"],
    ],
)
def test_options_that_would_do_nothing_are_refused(sweep: Path, arguments: list[str]) -> None:
    assert main(["export", str(sweep), *arguments]) == 2
    assert not Path("x").exists()
