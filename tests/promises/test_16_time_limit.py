"""Promise 16: a job at its time limit is stopped, requeued, and carries on; finished trials are not run again."""

from __future__ import annotations

import pytest

from ptb_runner.launch import submitit
from tests.launch_kit import waits


@pytest.mark.slurm
def test_a_job_at_its_time_limit_is_carried_on_with(make_sweep, tmp_path, slurm):
    sweep = make_sweep(
        [[*waits(tmp_path / "gate", attempt=2), "attempts=2"]],
        "launcher=slurm",
        "launcher.time_hours=0.017",  # a minute, the least that Slurm knows
        "launcher.signal_delay_sec=40",
    )
    submitit.submit(sweep.folder, sweep.cells)
    sweep.wait_for(lambda: sweep.cell(0).status["attempts"]["finished"] == 1)
    finished = sweep.cell(0).mtimes()["hello__001"]
    job_id = sweep.launcher(0)["job_id"]
    sweep.wait_for(lambda: sweep.launcher(0)["requeues"] == 1, timeout_sec=100)
    assert sweep.where[0] in ("queued", "running")
    sweep.open()
    assert str(sweep.wait()[0].where) == "over"
    assert sweep.cell(0).outcomes == ["scored", "scored"]
    assert sweep.cell(0).mtimes()["hello__001"] == finished
    assert [path.name for path in (sweep.folder / "0" / "superseded").iterdir()] == ["hello__002.1"]
    assert sweep.launcher(0)["job_id"] == job_id
    assert sweep.launcher(0)["error"] is None
