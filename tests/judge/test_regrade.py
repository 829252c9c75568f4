"""`ptb regrade`: the verifier alone works again; what it said before is kept aside."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

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
