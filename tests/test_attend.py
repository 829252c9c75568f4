"""What is done for an agent that works in a sandbox: its logs come out, what it leaves running is ended."""

from __future__ import annotations

import json

from tests.run_kit import QUICK, agent, only_cell

SUMS = ("benchmark=addition", "budget=smoke", "benchmark.evaluation.limit=10")


def test_what_an_agent_leaves_running_is_ended_and_told(ptb):
    assert ptb(*SUMS, *agent("LeavesRunning")).code in (0, 1)
    cell = only_cell()
    trial = cell.trial()
    assert trial["flags"] == ["left_processes:2"]
    told = json.loads((cell.folder / trial["trial_dir"] / "left_processes.json").read_text())
    assert any("sleep 1234" in line for line in told)


def test_an_agent_that_leaves_nothing_is_not_flagged(ptb):
    assert ptb(*SUMS, *agent("Honest")).code == 0
    assert only_cell().trial()["flags"] == []


def test_harbors_own_tasks_may_need_what_the_agent_started(ptb):
    command = "printf ok > answer.txt; nohup sleep 1234 > /dev/null 2>&1 &"
    assert ptb(*QUICK, *agent("Scripted", command=command)).code == 0
    assert only_cell().trial()["flags"] == []
