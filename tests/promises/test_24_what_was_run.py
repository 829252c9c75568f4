"""Promise 24: a result says what made it, and whether it can be compared with the benchmark's own."""

import pytest

from tests.run_kit import agent, only_cell


def provenance(ptb, *overrides: str):
    ran = ptb(*overrides)
    assert ran.code in (0, 1), ran.err
    found = only_cell().result["provenance"]
    told = "not comparable" in ran.out
    assert told == (not found["comparable"])
    for why in found["not_comparable_because"]:
        assert why in ran.out
    return found


def test_a_run_as_the_benchmark_has_it_is_comparable(ptb):
    found = provenance(ptb, "benchmark=hello", "attempts=2", "concurrency=2", "agent.timeout_hours=0.1")
    assert (found["comparable"], found["not_comparable_because"]) == (True, [])
    assert found["overrides"] == ["benchmark=hello", "attempts=2", "concurrency=2", "agent.timeout_hours=0.1"]
    assert {"ptb-runner", "harbor", "modal", "python"} <= set(found["versions"])
    assert found["versions"]["harbor"].startswith("0.26.")
    assert found["git"] is None or (len(found["git"]["commit"]) == 40 and found["git"]["dirty"] in (True, False))
    assert len(found["task_sha256"]) == 64
    assert found["task_checksum"]
    assert found["agent_version"] == "1.0.0"
    assert found["observed_gpu"] is None


@pytest.mark.parametrize(
    ("overrides", "why"),
    [
        (["benchmark=hello", "agent.timeout_hours=0.2"], "the agent had 0.2 h, the benchmark's own limit is 0.1 h"),
        (["benchmark=hello", "benchmark.agent_hours=0.2"], "benchmark.agent_hours=0.2"),
        (["benchmark=hello", "++benchmark.verifier_hours=0.2"], "benchmark.verifier_hours=0.2"),
        (["benchmark=hello", "benchmark.network=public"], "benchmark.network=public"),
        (["benchmark=addition", "benchmark.evaluation.limit=3", *agent("Honest")], "scored on 3 items only"),
        (["benchmark=addition", "benchmark.evaluation={limit: 3}", *agent("Honest")], "scored on 3 items only"),
    ],
)
def test_a_changed_limit_is_told(ptb, overrides, why):
    found = provenance(ptb, *overrides)
    assert found["comparable"] is False
    assert any(why in text for text in found["not_comparable_because"])


def test_a_limit_that_a_file_of_ones_own_changes_is_told_too(ptb, tmp_path):
    """An experiment's file is not among the overrides, but it changes the benchmark all the same."""
    file = tmp_path / "own" / "experiment" / "long.yaml"
    file.parent.mkdir(parents=True)
    file.write_text("# @package _global_\ndefaults:\n  - override /benchmark: hello\nbenchmark:\n  agent_hours: 9\n")
    found = provenance(ptb, "--config-dir", str(tmp_path / "own"), "experiment=long")
    assert found["comparable"] is False
