"""Promise 4: when a task was changed, results of the old one are never given for the new one."""

import shutil
from pathlib import Path

import pytest

from tests.run_kit import REWARD_IF_OK, Cell, agent, make_task

ALWAYS = "#!/usr/bin/env bash\necho 1 > /logs/verifier/reward.txt\n"


@pytest.fixture
def finished(ptb):
    """A finished run of a task folder, and the overrides that made it; its trial has reward 0."""
    make_task(Path("mine"), REWARD_IF_OK)
    overrides = ["benchmark=task", "benchmark.path=mine", *agent("Scripted"), "hydra.run.dir=here"]
    assert ptb(*overrides).code == 0
    cell = Cell(Path("here").absolute())
    assert cell.trial()["reward"] == 0
    return overrides, cell


def test_a_change_in_the_cells_own_copy_is_refused(ptb, finished):
    overrides, cell = finished
    (cell.folder / "task" / "tests" / "test.sh").write_text(ALWAYS)
    before = cell.mtimes(), cell.result, (cell.folder / "cell.yaml").read_text(), cell.status
    for command in (
        ["resume", "here"],
        ["resume", "here", "--retry", "scored"],
        overrides,
        [*overrides, "attempts=2"],
    ):
        ran = ptb(*command)
        assert ran.code == 2
        assert "the task was changed after it was rendered" in ran.err
        assert "reward" not in ran.out
        assert (cell.mtimes(), cell.result, (cell.folder / "cell.yaml").read_text(), cell.status) == before


def test_a_cells_own_copy_that_is_gone_is_told_as_missing(ptb, finished):
    _, cell = finished
    shutil.rmtree(cell.folder / "task")
    ran = ptb("resume", "here")
    assert ran.code == 2
    assert "here/task: is missing" in ran.err


def test_an_option_changed_by_hand_is_refused_with_the_difference(ptb, finished):
    overrides, cell = finished
    path = cell.folder / "cell.yaml"
    text = path.read_text().replace("  concurrency: 1", "  concurrency: 2")
    path.write_text(text.replace("\n  seed: 0\n", "\n  seed: 7\n", 1))  # the second one is the identity's
    for command in (["resume", "here"], ["resume", "here", "--retry", "scored"], overrides):
        ran = ptb(*command)
        assert ran.code == 2
        assert "cell.yaml: was changed" in ran.err
        assert "seed: 0 -> 7" in ran.err
        assert "concurrency" not in ran.err
    assert cell.outcomes == ["scored"]


def test_a_change_in_the_folder_it_came_from_is_refused_in_the_same_cell_and_run_in_a_new_one(ptb, finished):
    overrides, cell = finished
    Path("mine/tests/test.sh").write_text(ALWAYS)
    before = cell.mtimes(), cell.result
    ran = ptb(*overrides)
    assert ran.code == 2
    assert "task_sha256" in ran.err
    assert (cell.mtimes(), cell.result) == before

    assert ptb(*overrides[:-1], "hydra.run.dir=there").code == 0
    assert Cell(Path("there")).trial()["reward"] == 1
    assert Cell(Path("there")).result["cell_id"] != cell.result["cell_id"]


def test_the_agent_is_part_of_what_is_not_mixed_up(ptb, finished):
    overrides, _ = finished
    ran = ptb(*overrides, "agent.options.command='printf ok > answer.txt'")
    assert ran.code == 2
    assert "agent.options" in ran.err
