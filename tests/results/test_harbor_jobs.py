"""Harbor jobs that ptb_runner did not make are collected like its own."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from ptb_runner.cli import main
from ptb_runner.harbor_job import quiet_harbor
from ptb_runner.results.report import report
from ptb_runner.results.rows import read_rows
from tests.run_kit import make_task

TASK = 'echo "$([ -e /app/answer.txt ] && echo 1 || echo 0)" > /logs/verifier/reward.txt'


async def _run(folder: Path) -> None:
    from harbor.job import Job
    from harbor.models.job.config import JobConfig

    task = make_task(folder / "tasks" / "one", TASK)
    (task / "solution").mkdir()
    (task / "solution" / "solve.sh").write_text("#!/usr/bin/env bash\necho ok > /app/answer.txt\n")
    config = {
        "job_name": "plain",
        "jobs_dir": folder / "jobs",
        "n_attempts": 2,
        "quiet": True,
        "environment": {"import_path": "ptb_runner.sandbox.bubblewrap:BubblewrapEnvironment"},
        "agents": [{"name": "oracle"}, {"name": "nop", "model_name": "some/llm"}],
        "datasets": [{"path": folder / "tasks"}],
    }
    await (await Job.create(JobConfig.model_validate(config))).run()


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A jobs/ folder as `harbor run` leaves it: one job, two agents on a task, twice."""
    quiet_harbor()
    folder = tmp_path_factory.mktemp("harbor")
    asyncio.run(_run(folder))
    return folder / "jobs"


@pytest.fixture
def jobs(made: Path, tmp_path: Path) -> Path:
    return shutil.copytree(made, tmp_path / "jobs")


def _trials(jobs: Path, agent: str) -> list[Path]:
    found = []
    for path in sorted(jobs.glob("plain/*/result.json")):
        result = json.loads(path.read_text())
        found += [path.parent] if result["config"]["agent"]["name"] == agent else []
    return found


def _change(path: Path, **values: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def test_a_row_is_an_agent_on_a_data_set(jobs: Path) -> None:
    rows = {row.agent: row for row in read_rows(jobs)}
    assert set(rows) == {"oracle", "nop"}
    assert rows["oracle"].benchmark == rows["nop"].benchmark == "tasks"
    assert rows["oracle"].score == {
        "raw": 1.0,
        "final": 1.0,
        "final_source": "verifier",
        "n_expected": 2,
        "n_scored": 2,
        "awaits_review": 0,
    }
    assert rows["nop"].score["final"] == 0.0
    assert rows["nop"].overrides == ["agent.model=some/llm"]
    numbered = [(trial["task"], trial["attempt"]) for trial in rows["oracle"].trials]
    assert sorted(numbered) == [("own/mine", 1), ("own/mine", 2)]
    assert rows["oracle"].result["provenance"]["versions"]["harbor"]


def test_trials_are_found_from_the_rows_folder(jobs: Path) -> None:
    for folder in (jobs, jobs / "plain"):
        for row in read_rows(folder):
            for trial in row.trials:
                assert (folder / row.folder / trial["trial_dir"] / "result.json").is_file()


def test_collect_writes_its_tables_beside_the_jobs(jobs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["collect", str(jobs)]) == 0
    assert "2 cells, 4 trials, 4/4 planned trials scored" in capsys.readouterr().out
    lines = [json.loads(line) for line in (jobs / "results.jsonl").read_text().splitlines()]
    assert len(lines) == 4
    first = (jobs / "results.csv").read_bytes()
    assert main(["collect", str(jobs)]) == 0
    assert (jobs / "results.csv").read_bytes() == first


def test_an_error_of_harbor_is_no_zero(jobs: Path) -> None:
    path = _trials(jobs, "oracle")[0] / "result.json"
    info = {"exception_type": "EnvironmentStartTimeoutError", "exception_message": "no room", "occurred_at": "x"}
    _change(path, verifier_result=None, exception_info=info)
    row = next(row for row in read_rows(jobs) if row.agent == "oracle")
    assert (row.score["raw"], row.score["n_scored"], row.score["n_expected"]) == (1.0, 1, 2)
    assert row.outcome == "infra_error"


def test_what_is_missing_or_damaged_is_told(jobs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (damaged, begun), gone = _trials(jobs, "oracle"), _trials(jobs, "nop")[0]
    shutil.rmtree(gone)
    (damaged / "result.json").write_text("{")
    (begun / "result.json").unlink()
    assert main(["collect", str(jobs)]) == 1
    out = capsys.readouterr().out
    assert "1/4 planned trials scored" in out
    assert f"{damaged.name}/result.json: not valid JSON" in out
    assert "1 trials begun and not over" in out


def test_without_a_lock_file_the_total_is_not_made_up(jobs: Path) -> None:
    (jobs / "plain" / "lock.json").unlink()
    assert [row.score["n_expected"] for row in read_rows(jobs)] == [None, None]
    for folder in _trials(jobs, "nop"):
        shutil.rmtree(folder)
    assert [row.score["n_expected"] for row in read_rows(jobs)] == [4]


def test_a_folder_of_neither_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "job").mkdir()
    (tmp_path / "job" / "config.json").write_text('{"some": "thing"}')
    assert main(["collect", str(tmp_path)]) == 2
    assert "no Harbor job" in capsys.readouterr().err


def test_a_harbor_job_has_a_report(jobs: Path) -> None:
    text = report(jobs, jobs / "report.html").path.read_text()
    assert "<strong>4 of 4</strong> planned trials scored" in text
    assert all(f'data-trial="{number}/{path.name}"' in text for number, path in _numbered(jobs))


def _numbered(jobs: Path) -> list[tuple[int, Path]]:
    return [(number, path) for number, agent in enumerate(("oracle", "nop")) for path in _trials(jobs, agent)]


def test_of_several_rewards_the_user_says_which_counts(jobs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for path in jobs.glob("plain/*/result.json"):
        _change(path, verifier_result={"rewards": {"style": 0.25, "tests": 0.75}})
    assert main(["collect", str(jobs)]) == 1  # Harbor has a mean for each, and none of both
    lines = [json.loads(line) for line in (jobs / "results.jsonl").read_text().splitlines()]
    assert {line["outcome"] for line in lines} == {"eval_failed"}
    assert {str(line["metrics"]) for line in lines} == {"{'style': 0.25, 'tests': 0.75}"}
    assert "--reward NAME" in lines[0]["error"]["message"]

    assert main(["collect", str(jobs), "--reward", "test"]) == 2
    assert "there are: style, tests" in capsys.readouterr().err
    assert main(["collect", str(jobs), "--reward", "tests"]) == 0
    assert [row.score["final"] for row in read_rows(jobs)] == [0.75, 0.75]  # for every later reader, too
    assert main(["collect", str(jobs), "--reward", "style"]) == 0
    assert [row.score["final"] for row in read_rows(jobs / "plain")] == [0.25, 0.25]
    assert main(["collect", str(jobs.parent), "--reward", "style"]) == 2
    assert "here is none of them" in capsys.readouterr().err
