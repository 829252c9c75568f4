"""What an agent leaves running in a container is ended; the container's own helpers are not."""

from __future__ import annotations

import json

import pytest

from tests.podman.podman_kit import PODMAN
from tests.run_kit import agent, only_cell

pytestmark = [pytest.mark.podman, pytest.mark.usefixtures("image")]


def test_what_an_agent_leaves_running_is_ended_and_told(ptb):
    ran = ptb("benchmark=addition", *PODMAN, "benchmark.evaluation.limit=10", *agent("LeavesRunning"))
    cell = only_cell()
    trial = cell.trial()
    assert trial["flags"] == ["left_processes:2"], ran.out + ran.err + str(trial["error"])
    told = json.loads((cell.folder / trial["trial_dir"] / "left_processes.json").read_text())
    assert any("sleep 1234" in line for line in told)


def test_an_honest_agent_is_not_flagged(ptb):
    assert ptb("benchmark=addition", *PODMAN, "benchmark.evaluation.limit=10", *agent("Honest")).code == 0
    assert only_cell().trial()["flags"] == []
