"""Promise 7: whatever an agent forges, it gets the score of its work; an honest one gets the same for the same work."""

import pytest

from tests.run_kit import Cell, agent, only_cell


@pytest.fixture(scope="module")
def scores() -> dict[str, float]:
    return {}


LIMIT = "benchmark.evaluation.limit=200"


@pytest.mark.parametrize("name", ["Honest", "Cheat"])
def test_addition(ptb, scores, name):
    """Both hand over the untrained base model. (Honest first: its score is what the cheat's is compared with.)"""
    ran = ptb("benchmark=addition", *agent(name), LIMIT)
    assert ran.code == 0, ran.out
    trial = only_cell().trial()
    assert (trial["outcome"], trial["error"]) == ("scored", None)
    assert trial["metrics"]["n"] == 200
    assert trial["reward"] < 0.2
    assert trial["reward"] == scores.setdefault("Honest", trial["reward"])


def test_a_cheat_without_a_model_has_none(ptb):
    no_model = "mkdir -p /handoff/final_model; cp base_model/* /handoff/final_model; " + forged("collect.json")
    ran = ptb("benchmark=addition", *agent("Scripted", command=no_model))
    assert ran.code == 1
    assert (only_cell().trial()["outcome"], only_cell().trial()["reward"]) == ("no_model", None)


def forged(name: str) -> str:
    return (
        f"""echo '{{"final_model": "copied", "outcome": "scored", "reward": 1.0, "accuracy": 1.0}}' > /handoff/{name}"""
    )


def test_links_lead_nowhere(ptb):
    ran = ptb("benchmark=addition", *agent("CheatWithLinks"))
    assert ran.code == 1
    cell = only_cell()
    assert (cell.trial()["outcome"], cell.trial()["reward"]) == ("invalid_model", None)
    tests = (cell.folder / "task" / "tests" / "test.txt").read_bytes()
    copies = [path for path in cell.folder.rglob("*") if path.is_file() and path.read_bytes() == tests]
    assert copies == [cell.folder / "task" / "tests" / "test.txt"]
    assert not list((cell.folder / "job").rglob("shadow*"))


def test_hello(ptb):
    """The wrong answer, with all the same tricks; the right one for comparison."""
    wrong, right = Cell(only_run(ptb, "Cheat")), Cell(only_run(ptb, "Honest"))
    assert (wrong.trial()["outcome"], wrong.trial()["reward"]) == ("scored", 0.0)
    assert (right.trial()["outcome"], right.trial()["reward"]) == ("scored", 1.0)


def only_run(ptb, name):
    from pathlib import Path

    ran = ptb("benchmark=hello", *agent(name), f"hydra.run.dir={name}")
    assert ran.code == 0, ran.out
    return Path(name).absolute()
