"""Promise 13: whatever stands in an override, folders have a fixed depth and short names."""

from pathlib import Path

import pytest

from tests.run_kit import REWARD_IF_OK, agent, make_task, only_cell

LONG = "x" * 300


@pytest.mark.parametrize(
    "overrides",
    [
        ["agent.model='org/model|x'"],
        ["agent.id='a/b|c # d'"],
        [f"agent.id={LONG}"],
        ["benchmark.id='org/bench|x # 1'"],
        [f"benchmark.id={LONG}"],
        ["benchmark.id='../../up'"],
        ["benchmark.id='.'"],
        [f"agent.options.note={LONG}", "agent.env.A='|#/\"'"],
    ],
    ids=lambda overrides: overrides[0][:30].replace("/", "_"),
)
def test_folders_stay_as_they_are(ptb, overrides):
    ran = ptb("benchmark=hello", *agent("Honest"), *overrides)
    assert ran.code == 0, ran.out + ran.err
    cell = only_cell()
    assert len(cell.folder.relative_to(Path.cwd()).parts) == 3
    _check(cell)


@pytest.mark.parametrize("name", ["my task # 1", "a|b", "y" * 200, "ünï", "task"])
def test_a_task_folder_with_an_odd_name(ptb, name):
    make_task(Path(name), REWARD_IF_OK)
    ran = ptb("benchmark=task", f"benchmark.path='{name}'", *agent("Honest"))
    assert ran.code == 0, ran.out + ran.err
    _check(only_cell())


def _check(cell) -> None:
    trial = cell.trial()
    folder = cell.folder / trial["trial_dir"]
    assert folder.parent == cell.folder / "job"
    assert (folder / "result.json").is_file()
    assert len(folder.name) < 60
    assert not set(folder.name) & set("|#/ ")
    assert not folder.name.startswith(".")
    deepest = max(
        len(path.relative_to(cell.folder / "job").parts) for path in (cell.folder / "job").glob("*/result.json")
    )
    assert deepest == 2
