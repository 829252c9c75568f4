"""Promise 19: a job that was preempted and then succeeded is a success, and both attempts are told of."""

from __future__ import annotations

import json

import pytest

from tests.beaker_cells_kit import Cells

pytestmark = pytest.mark.beaker


def test_the_last_attempt_counts(beaker_cells: Cells):
    beaker_cells.jobs_do("--waits")
    assert beaker_cells.submit().code == 0
    first = beaker_cells.wait_until_at_work()
    beaker_cells.server.hold("no node is free")
    beaker_cells.server.preempt(first["id"])
    beaker_cells.wait_for_jobs(0, lambda jobs: len(jobs) == 2)
    waiting = beaker_cells.ptb("status", beaker_cells.sweep)
    assert beaker_cells.state() == "planned"
    assert "Beaker says: no node is free" in waiting.out
    beaker_cells.server.release()
    beaker_cells.open_gate()
    beaker_cells.wait_for_jobs(0, lambda jobs: jobs[1]["finalized"])
    collected = beaker_cells.ptb("collect", beaker_cells.sweep)
    assert (collected.code, beaker_cells.state()) == (0, "finished")
    told = beaker_cells.ptb("status", beaker_cells.sweep).out
    assert "attempt 1: canceled (system preemption" in told
    assert "attempt 2: succeeded (exit code 0)" in told
    attempts = json.loads(beaker_cells.ptb("status", beaker_cells.sweep, "--json").out)[0]["job"]["attempts"]
    assert [one["state"] for one in attempts] == ["canceled", "succeeded"]
