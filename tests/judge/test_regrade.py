"""`ptb regrade`: the verifier alone works again; what it said before is kept aside."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ptb_runner.cell import read_cell
from ptb_runner.sweepfile import write_sweep
from tests import run_kit
from tests.run_kit import QUICK, agent


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """Where the cell that these tests begin with is kept, once the first of them has run it."""
    return tmp_path_factory.mktemp("kept") / "cell"


@pytest.fixture
def cell(kept, ptb):
    """A cell whose agent handed over the base model, with the hand-off kept."""
    if not kept.exists():
        assert ptb(*agent("Honest"), "backend.keep_model=always", "hydra.run.dir=cell").code == 0
        shutil.copytree("cell", kept)
    shutil.copytree(kept, "cell", dirs_exist_ok=True)
    return run_kit.Cell(Path("cell").resolve())


def test_a_kept_model_is_scored_again_without_the_agent(ptb, cell):
    before = cell.trial()
    judgements = cell.folder / "job" / before["name"] / "judgements"
    judgements.mkdir()
    (judgements / "trace.txt").write_text("what judges had read")
    # A result that went wrong, as a broken grader would leave it.
    path = cell.folder / "job" / before["name"] / "result.json"
    wrong = json.loads(path.read_text())
    wrong["verifier_result"]["rewards"]["reward"] = 0.5
    path.write_text(json.dumps(wrong))
    state = cell.status
    ran = ptb("regrade", "cell")
    assert ran.code == 0, ran.err
    after = cell.trial()
    assert f"{before['name']}: scored 0.5000 -> scored {before['reward']:.4f}" in ran.out
    assert after["reward"] == before["reward"]
    assert after["durations_sec"]["agent"] == before["durations_sec"]["agent"]
    assert after["agent_version"] == before["agent_version"]
    assert cell.result["score"]["raw"] == before["reward"]
    assert {**cell.status, "updated_at": None} == {**state, "updated_at": None}  # it is as far as it was
    old = cell.folder / "superseded" / f"{before['name']}.1"
    assert json.loads((old / "result.json").read_text())["verifier_result"]["rewards"]["reward"] == 0.5
    assert (judgements / "trace.txt").read_text() == "what judges had read"
    assert (cell.folder / "handoff" / before["name"] / "final_model/config.json").is_file()
    assert (cell.folder / "job" / before["name"] / "artifacts/logs/artifacts/workspace").is_dir()


def test_without_the_model_nothing_is_started(ptb, cell):
    shutil.rmtree(cell.folder / "handoff")
    before = cell.result
    ran = ptb("regrade", "cell")
    assert (ran.code, "were not kept" in ran.err) == (2, True)
    assert cell.result["trials"] == before["trials"]
    assert not (cell.folder / "superseded").exists()
    assert ptb("regrade", "cell", "--only", "eval_failed").code == 0  # there is none, and nothing to do
    assert "did you mean" in ptb("regrade", "cell", "--only", "eval_faild").err


def test_of_a_sweep_what_was_kept_is_graded_again(ptb, cell):
    for number in (0, 1):
        shutil.copytree(cell.folder, f"sweep/{number}")
    write_sweep(Path("sweep"), [], [read_cell(Path(f"sweep/{number}").resolve()) for number in (0, 1)])
    shutil.rmtree("sweep/0/handoff")
    ran = ptb("regrade", "sweep")
    assert ran.code == 1, ran.err
    assert "its model was not kept, its result stays" in ran.out
    assert ran.out.count(" -> scored ") == 1
    assert [list(Path("sweep").glob(f"{n}/superseded/*")) == [] for n in (0, 1)] == [True, False]


def test_saved_artifacts_are_graded_again_and_a_failure_changes_nothing(ptb):
    assert ptb(*QUICK, *agent("Honest"), "hydra.run.dir=cell").code == 0
    cell = run_kit.Cell(Path("cell").resolve())
    [name] = [trial["name"] for trial in cell.result["trials"]]
    ran = ptb("regrade", "cell")
    assert (ran.code, f"{name}: scored 1.0000 -> scored 1.0000" in ran.out) == (0, True), ran.err
    shutil.rmtree(cell.folder / "job" / name / "artifacts")
    before = cell.mtimes()
    ran = ptb("regrade", "cell")
    assert ran.code == 1
    assert "could not be graded again, its result stays" in ran.out
    assert cell.mtimes() == before
    assert cell.outcomes == ["scored"]


def test_killed_in_a_regrade_a_cell_is_as_finished_as_before(ptb, tmp_path):
    task = run_kit.make_task(tmp_path / "mine", f"sleep 1\n{run_kit.REWARD_IF_OK}")
    own = ["benchmark=task", f"benchmark.path={task}", *agent("Honest")]
    assert ptb(*own, "hydra.run.dir=cell").code == 0
    cell = run_kit.Cell(Path("cell").resolve())
    before, state, times = cell.result, cell.status, cell.mtimes()
    [name] = times

    regrade = subprocess.Popen([sys.executable, "-m", "ptb_runner", "regrade", "cell"], stdout=subprocess.DEVNULL)
    while not (cell.folder / "regrading" / name / "config.json").exists():
        assert regrade.poll() is None
        time.sleep(0.02)
    regrade.kill()
    regrade.wait()
    assert cell.result["trials"] == before["trials"]
    assert (cell.status["state"], cell.mtimes()) == (state["state"], times)

    assert ptb("resume", "cell").code == 0
    assert cell.mtimes() == times  # the agent has not worked again
    assert not (cell.folder / "regrading").exists()
    assert (cell.folder / "superseded" / f"{name}.1").is_dir()

    ran = ptb("regrade", "cell")
    assert (ran.code, f"{name}: scored 1.0000 -> scored 1.0000" in ran.out) == (0, True), ran.err
    trial = json.loads((cell.folder / "job" / name / "result.json").read_text())
    assert trial["trial_uri"] == (cell.folder / "job" / name).as_uri()
    assert trial["config"]["trials_dir"] == str(cell.folder / "job")
    assert trial["config"]["source_trial"]["path"] == str(cell.folder / "superseded" / f"{name}.2")


def test_killed_between_two_renames_the_new_result_counts(ptb):
    """`regrade` has moved the old trial away, the new one is whole and still beside its place."""
    assert ptb(*QUICK, *agent("Honest"), "hydra.run.dir=cell").code == 0
    cell = run_kit.Cell(Path("cell").resolve())
    times = cell.mtimes()
    [name] = times
    (cell.folder / "regrading").mkdir()
    (cell.folder / "job" / name).rename(cell.folder / "regrading" / name)
    assert ptb("resume", "cell").code == 0
    assert cell.mtimes() == times
    assert not (cell.folder / "regrading").exists()
