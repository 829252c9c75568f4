"""Harbor datasets: from a folder, a registry file, a git repository; chosen, limited, run and resumed as one cell."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.run_kit import REWARD_IF_OK, TASK_TOML, agent, make_task, only_cell

NAMES = ("apple", "banana", "cherry")


@pytest.fixture
def shelf(tmp_path: Path) -> Path:
    """A folder of three tasks; the oracle solves all but cherry."""
    for name in NAMES:
        task = make_task(tmp_path / "shelf" / name, REWARD_IF_OK)
        (task / "solution").mkdir()
        said = "no" if name == "cherry" else "ok"
        (task / "solution" / "solve.sh").write_text(f"#!/bin/sh\nmkdir -p /app && printf {said} > /app/answer.txt\n")
        (task / "solution" / "solve.sh").chmod(0o755)
    (tmp_path / "shelf" / "README.md").write_text("No task.\n")
    return tmp_path / "shelf"


@pytest.fixture
def registry(shelf: Path, tmp_path: Path) -> Path:
    """A registry file beside the folder: two tasks by path, one in a git repository."""
    repository = tmp_path / "repository"
    shutil.copytree(shelf / "cherry", repository / "fruit" / "cherry")
    git = ("git", "-c", "user.name=t", "-c", "user.email=t@t.test", "-C", str(repository))
    subprocess.run(["git", "init", "-q", repository], check=True)
    subprocess.run([*git, "add", "."], check=True)
    subprocess.run([*git, "commit", "-qm", "tasks"], check=True)
    tasks: list[dict[str, str | None]] = [{"name": name, "path": f"shelf/{name}"} for name in ("apple", "banana")]
    tasks.append({"name": "cherry", "path": "fruit/cherry", "git_url": repository.as_uri(), "git_commit_id": None})
    rows = [{"name": "fruit", "version": "1.0", "description": "", "tasks": tasks}]
    (tmp_path / "registry.json").write_text(json.dumps(rows))
    return tmp_path / "registry.json"


def test_a_folder_of_tasks_is_one_cell_with_attempts_of_each(ptb, shelf):
    ran = ptb("benchmark=dataset", f"benchmark.path={shelf}", "agent=oracle", "attempts=2", "concurrency=6")
    assert ran.code == 0, ran.out + ran.err
    cell = only_cell()
    rewards = {trial["name"]: trial["reward"] for trial in cell.result["trials"]}
    assert rewards == {f"{name}__00{n}": float(name != "cherry") for n in (1, 2) for name in NAMES}
    assert cell.result["score"] | {"raw": 0} == cell.result["score"] | {"raw": 0, "n_expected": 6, "n_scored": 6}
    assert cell.result["score"]["raw"] == pytest.approx(2 / 3)
    assert cell.status["attempts"]["expected"] == 6
    ran = ptb("collect", cell.folder)
    assert ran.code == 0, ran.out
    metrics = json.loads((cell.folder / "metrics.json").read_text())
    assert metrics["mean_reward"] == pytest.approx(2 / 3)
    assert metrics["pass_at_k"] == {"1": pytest.approx(2 / 3), "2": pytest.approx(2 / 3)}
    assert metrics["per_task"]["cherry"] == {"mean_reward": 0.0, "rewards": [0.0, 0.0], "outcomes": {"scored": 2}}
    assert "mean reward: 0.6667 ± 0.3333" in (cell.folder / "stats.txt").read_text()


def test_the_trials_are_what_resumes(ptb, shelf):
    ptb("benchmark=dataset", f"benchmark.path={shelf}", "agent=oracle")
    cell = only_cell()
    before = cell.mtimes()
    shutil.rmtree(shelf)  # the cell has its own copy
    shutil.rmtree(cell.folder / "job" / "banana__001")
    ran = ptb("resume", cell.folder)
    assert ran.code == 0, ran.err
    after = cell.mtimes()
    assert after.keys() == before.keys()
    assert {name for name in after if after[name] != before[name]} == {"banana__001"}


@pytest.mark.parametrize(
    ("chosen", "names"),
    [
        (["benchmark.include=[b*,cherry]"], {"banana", "cherry"}),
        (["benchmark.exclude=['*an*']"], {"apple", "cherry"}),
        (["benchmark.n_tasks=1"], {"apple"}),
        (["benchmark.include=['*a*']", "benchmark.exclude=[apple]", "benchmark.n_tasks=5"], {"banana"}),
    ],
)
def test_tasks_are_chosen_by_name(ptb, shelf, chosen, names):
    ran = ptb("benchmark=dataset", f"benchmark.path={shelf}", "agent=oracle", "dry_run=true", *chosen)
    assert ran.code == 0, ran.err
    assert {path.parent.name for path in only_cell().folder.glob("task/*/task.toml")} == names
    assert re.search(rf"trials\W+{len(names)}, at most", ran.out), ran.out


def test_a_registry_file_with_paths_and_a_git_repository(ptb, registry, monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))  # Harbor's cache of tasks
    found = ("benchmark=dataset", f"benchmark.registry_path={registry}", "agent=oracle", "concurrency=3")
    ran = ptb(*found, "benchmark.dataset=fruit@1.0")
    assert ran.code == 0, ran.out + ran.err
    assert only_cell().result["score"]["raw"] == pytest.approx(2 / 3)
    for wrong, said in {"fruit@2.0": "did you mean fruit@1.0?", "a b": "NAME@VERSION"}.items():
        ran = ptb(*found, f"benchmark.dataset='{wrong}'")
        assert (ran.code, said in ran.err) == (2, True), ran.err


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["benchmark.include=[zebra]"], "No tasks matched"),
        (["benchmark.exclude=['*']"], "no task is left"),
        (["benchmark.dataset=a@1"], "benchmark.path and benchmark.dataset are both set"),
        (["benchmark.limits.agent_sec=5", "benchmark.limits.agent_multiplier=2"], "keep one"),
        (["benchmark.limits.agent_sec=5", "budget.hours=1"], "keep one"),
        (["benchmark.limits.verifier_sec=0"], "above 0"),
    ],
)
def test_what_cannot_be_is_refused(ptb, shelf, overrides, said):
    ran = ptb("benchmark=dataset", f"benchmark.path={shelf}", "agent=oracle", *overrides)
    assert ran.code == 2
    assert said in ran.err
    assert "Traceback" not in ran.err
    assert not list(Path.cwd().rglob("status.json"))


def test_choices_need_a_dataset_and_a_dataset_needs_a_name(ptb, shelf):
    ran = ptb("benchmark=task", f"benchmark.path={shelf / 'apple'}", "agent=oracle", "benchmark.n_tasks=2")
    assert (ran.code, "benchmark.n_tasks: only for a dataset" in ran.err) == (2, True)
    ran = ptb("benchmark=dataset", "agent=oracle")
    assert (ran.code, "type benchmark.dataset=NAME@VERSION" in ran.err) == (2, True)


def test_a_broken_task_of_a_dataset_is_named(ptb, shelf):
    (shelf / "banana" / "task.toml").write_text(TASK_TOML + "\n[nonsense]\nx = 1\n")
    ran = ptb("benchmark=dataset", f"benchmark.path={shelf}", "agent=oracle")
    assert ran.code == 2
    assert "the task banana is not valid" in ran.err


def test_one_chosen_task_has_statistics_too(ptb, shelf):
    ran = ptb("benchmark=dataset", f"benchmark.path={shelf}", "benchmark.n_tasks=1", "agent=oracle", "attempts=2")
    assert ran.code == 0, ran.err
    assert ptb("collect", only_cell().folder).code == 0
    assert json.loads((only_cell().folder / "metrics.json").read_text())["pass_at_k"] == {"1": 1.0, "2": 1.0}


def test_limits_reach_harbor(ptb, shelf):
    limits = ("agent_sec=7", "verifier_multiplier=3", "build_multiplier=4", "agent_setup_multiplier=2", "multiplier=5")
    chosen = [f"benchmark.limits.{one}" for one in limits]
    ran = ptb("benchmark=dataset", f"benchmark.path={shelf}", "agent=oracle", "benchmark.cpus=3", *chosen)
    assert ran.code == 0, ran.err
    trial = json.loads((only_cell().folder / "job" / "apple__001" / "config.json").read_text())
    assert trial["agent"]["override_timeout_sec"] == 7
    assert trial["agent_timeout_multiplier"] == 1
    assert (trial["verifier_timeout_multiplier"], trial["environment_build_timeout_multiplier"]) == (3, 4)
    assert (trial["agent_setup_timeout_multiplier"], trial["timeout_multiplier"]) == (2, 5)
    assert trial["environment"]["override_cpus"] == 3
    assert only_cell().result["provenance"]["comparable"] is False


def test_a_factor_on_a_limit_is_applied_once(ptb, shelf):
    factors = ("benchmark.limits.agent_multiplier=2", "benchmark.limits.multiplier=3")
    assert ptb("benchmark=hello", "agent=oracle", *factors, "hydra.run.dir=one").code == 0
    trial = json.loads(next(Path("one").glob("job/*/config.json")).read_text())
    assert (trial["agent"]["override_timeout_sec"], trial["agent_timeout_multiplier"]) == (pytest.approx(720), 1)
    assert (trial["verifier"]["override_timeout_sec"], trial["verifier_timeout_multiplier"]) == (pytest.approx(1080), 1)
    ran = ptb("benchmark=dataset", f"benchmark.path={shelf}", "agent=oracle", *factors, "dry_run=true")
    assert "the task's own, times 2" in ran.out
    assert "the task's own, times 3" in ran.out
    ran = ptb("benchmark=hello", "agent=oracle", *factors, "budget.hours=1")
    assert (ran.code, "agent_multiplier and budget.hours are both set" in ran.err) == (2, True)


def test_an_exact_limit_ends_the_agent(ptb, shelf):
    chosen = ("benchmark.include=[apple]", "benchmark.limits.agent_sec=1")
    ran = ptb("benchmark=dataset", f"benchmark.path={shelf}", *agent("Sleeper"), *chosen)
    assert ran.code == 0, ran.out + ran.err
    assert only_cell().outcomes == ["agent_timeout"]
    assert only_cell().trial()["durations_sec"]["agent"] < 20
