"""`+parity=NAME`: the reference is applied, overrides win, and every difference is recorded."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from ptb_runner.cell import read_cell
from ptb_runner.provenance import deviations
from tests.ptb.test_upstream import tree

REFERENCE = {
    "condor_v1_1": {
        "budget.hours": 10,
        "benchmark.cpus": 16,
        "benchmark.memory_mb": 131072,
        "benchmark.gpu_types": ["H100!"],
        "benchmark.evaluation.try_timeout_hours": 8,
        "content.kind": "upstream",
        "pins.clis.claude-code": "2.1.76",
        "agent.options.reasoning_effort": "high",
        "agent.env.BASH_MAX_TIMEOUT_MS": "36000000",
    },
    "harbor_adapter": {
        "budget.hours": 10,
        "benchmark.cpus": 8,
        "benchmark.memory_mb": 65536,
        "benchmark.verifier_hours": 3,
        "pins.clis.claude-code": "2.1.76",
    },
}


@pytest.fixture
def planned(ptb, tmp_path, monkeypatch):
    monkeypatch.setenv("ANTHROPIC_API_KEY", "made-up-0123456789")
    checkout = tree(tmp_path / "ptb", "new")

    def plan(*overrides: str) -> tuple[dict[str, Any], list[str], str]:
        """parity.json, why the cell is not comparable, and what was printed."""
        folder = Path(f"run{len(list(Path.cwd().glob('run*')))}")
        words = ["benchmark=gsm8k", "agent=claude-code", f"content.path={checkout}", "dry_run=true"]
        ran = ptb(*overrides, *words, f"hydra.run.dir={folder}")
        assert ran.code == 1, ran.err
        prompt = hashlib.sha256((folder / "task/instruction.md").read_bytes()).hexdigest()
        found = json.loads((folder / "parity.json").read_text())
        assert found["prompt_sha256"] == prompt
        return found, deviations(read_cell(folder)), ran.out

    return plan


def used(report: dict[str, Any]) -> dict[str, Any]:
    return {row["setting"]: row["used"] for row in report["settings"]}


def unequal(report: dict[str, Any]) -> set[str]:
    return {row["setting"] for row in report["settings"] if not row["equal"]}


@pytest.mark.parametrize("name", REFERENCE)
def test_a_reference_is_applied_and_recorded(planned, name):
    report, why, _ = planned(f"+parity={name}")
    assert report["reference"] == name
    found = used(report)
    assert {key: found[key] for key in REFERENCE[name]} == REFERENCE[name]
    # A folder is not known to be the reference's commit.
    assert unequal(report) == {"content.commit"}
    assert [text for text in why if "content.commit is unset" not in text] == []
    assert planned(f"parity={name}")[0] == report  # the plus sign is Hydra's, and may be left out
    assert report["equal"] == (not unequal(report))


def test_what_is_laid_over_it_wins_and_is_not_comparable(planned):
    report, why, out = planned("+parity=condor_v1_1", "benchmark.cpus=4", "agent.version=2.1.332")
    assert {key for key in unequal(report) if not key.startswith("judges.")} == {
        "benchmark.cpus",
        "pins.clis.claude-code",
        "content.commit",
    }
    assert "parity condor_v1_1: benchmark.cpus is 4, the reference has 16" in why
    assert "benchmark.cpus is 4, the reference has 16" in out
    report, why, _ = planned("+parity=condor_v1_1", "budget.hours=1", "agent.options.reasoning_effort=low")
    assert {"budget.hours", "agent.options.reasoning_effort"} <= unequal(report)
    report, why, _ = planned("+parity=condor_v1_1", "agent.timeout_hours=2")
    assert used(report)["budget.hours"] == 2
    assert "parity condor_v1_1: budget.hours is 2.0, the reference has 10" in why


@pytest.mark.parametrize("choice", ["budget=smoke", "content=builtin", "pins=latest"])
def test_a_choice_that_the_reference_makes_too_is_refused(ptb, choice):
    """Its settings would be laid over the choice, and a run of 10 hours be started by whoever typed smoke."""
    ran = ptb("+parity=condor_v1_1", "benchmark=gsm8k", choice, "dry_run=true")
    assert ran.code == 2
    assert f"{choice}: parity=condor_v1_1 sets" in ran.err
    assert list(Path.cwd().iterdir()) == []


def test_without_a_reference_there_is_no_record(ptb):
    assert ptb("benchmark=hello", "dry_run=true", "hydra.run.dir=plain").code == 0
    assert not Path("plain/parity.json").exists()


OWN = """# @package _global_
# What our lab does.
parity:
  id: lab
  title: Our lab
  reference:
    budget: &budget {hours: 2}
    benchmark: &benchmark {cpus: 32}
budget: *budget
benchmark: *benchmark
"""


def test_a_file_of_ones_own_works_the_same_way(planned, tmp_path):
    file = tmp_path / "own" / "parity" / "lab.yaml"
    file.parent.mkdir(parents=True)
    file.write_text(OWN)
    report, why, _ = planned("--config-dir", str(tmp_path / "own"), "+parity=lab")
    assert (report["title"], report["equal"], why) == ("Our lab", True, [])
    assert used(report) == {"budget.hours": 2, "benchmark.cpus": 32}
    report, why, _ = planned("--config-dir", str(tmp_path / "own"), "+parity=lab", "benchmark.cpus=1")
    assert unequal(report) == {"benchmark.cpus"}
    assert why == ["parity lab: benchmark.cpus is 1, the reference has 32"]
