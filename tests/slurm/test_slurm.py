"""launcher=slurm against a real Slurm: failures, cancelling, requeueing and killing, with and without accounting."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from ptb_runner.explain import UsageError
from ptb_runner.launch import slurm as clients
from ptb_runner.launch import submitit
from tests.launch_kit import HONEST, waits
from tests.run_kit import agent

pytestmark = pytest.mark.slurm

SLURM = ("launcher=slurm", "launcher.time_hours=1", "launcher.signal_delay_sec=30")


@pytest.fixture(params=["slurm", "bare_slurm"])
def either_slurm(request):
    """One with accounting, one without."""
    return request.getfixturevalue(request.param)


def test_six_cells_one_of_which_fails(make_sweep, either_slurm):
    cells = [HONEST, HONEST, agent("Raises"), HONEST, HONEST, HONEST]
    sweep = make_sweep(cells, *SLURM, "launcher.cpus_per_task=1", "launcher.mem_gb=0.5", "retry.infra_errors=0")
    assert submitit.problems(sweep.cells[0].config.launcher, [cell.config for cell in sweep.cells]) == []
    submitit.submit(sweep.folder, sweep.cells)
    found = sweep.wait()
    assert {number: str(one.where) for number, one in found.items()} == dict.fromkeys(range(6), "over")
    assert sweep.outcomes == ["scored", "scored", "infra_error", "scored", "scored", "scored"]
    assert sweep.leftovers() == []
    record = sweep.launcher(4)
    assert (record["kind"], record["cluster"], record["requeues"], record["error"]) == ("slurm", "slurm", 0, None)
    assert record["job_id"].startswith(record["array"])


def test_cancel(make_sweep, tmp_path, either_slurm):
    sweep = make_sweep([waits(tmp_path / "gate")] * 3, *SLURM, "launcher.array_parallelism=1")
    submitit.submit(sweep.folder, sweep.cells)
    sweep.wait_for_agent(0)
    assert sweep.where == {0: "running", 1: "queued", 2: "queued"}
    started = time.monotonic()
    assert submitit.cancel(sweep.folder) == []
    assert time.monotonic() - started < 15
    assert sweep.where == dict.fromkeys(range(3), "cancelled")
    assert [sweep.cell(number).status["state"] for number in range(3)] == ["cancelled"] * 3
    assert sweep.leftovers() == []


def test_a_job_cancelled_by_others_is_noticed(make_sweep, tmp_path, either_slurm):
    """Without accounting submitit itself would wait for ever."""
    sweep = make_sweep([waits(tmp_path / "gate"), HONEST], *SLURM, "launcher.array_parallelism=1")
    submitit.submit(sweep.folder, sweep.cells)
    sweep.wait_for_agent(0)
    either_slurm.call("scancel", sweep.launcher(0)["job_id"], sweep.launcher(1)["job_id"])
    found = sweep.wait()
    assert found[0].where == "cancelled"  # it was told to stop, and did
    assert found[1].where == "lost"
    assert "CANCELLED" in found[1].reason
    assert sweep.cell(1).status["state"] == "lost"


def test_a_forgotten_job_is_looked_up_in_accounting(make_sweep, tmp_path, slurm, monkeypatch):
    sweep = make_sweep([waits(tmp_path / "gate")], *SLURM)
    submitit.submit(sweep.folder, sweep.cells)
    sweep.wait_for_agent(0)
    os.kill(sweep.cell(0).status["launcher"]["pid"], signal.SIGKILL)
    job_id = sweep.launcher(0)["job_id"]
    sweep.wait_for(lambda: clients.accounted([job_id]).get(job_id, "RUNNING") != "RUNNING")
    monkeypatch.setattr(clients, "jobs", dict)
    found = submitit.states(sweep.folder)[0]
    assert (str(found.where), found.reason) == ("lost", f"job {job_id} is gone: FAILED")


def test_a_killed_worker_neither_stops_nor_delays_others(make_sweep, tmp_path, bare_slurm):
    sweep = make_sweep([waits(tmp_path / "gate"), waits(tmp_path / "gate")], *SLURM)
    submitit.submit(sweep.folder, sweep.cells)
    sweep.wait_for_agent(0)
    sweep.wait_for_agent(1)
    os.kill(sweep.cell(0).status["launcher"]["pid"], signal.SIGKILL)
    sweep.wait_for(lambda: sweep.where[0] == "lost")
    assert sweep.where[1] == "running"
    sweep.open()
    found = sweep.wait()
    assert [str(found[number].where) for number in range(2)] == ["lost", "over"]
    submitit.submit(sweep.folder, sweep.cells)  # as resume does
    sweep.wait()
    assert sweep.outcomes == ["scored", "scored"]
    assert sweep.leftovers() == []


def test_scontrol_requeue(make_sweep, tmp_path, bare_slurm):
    """It sends SIGTERM and passes over checkpoint: the job starts again and carries on."""
    sweep = make_sweep([[*waits(tmp_path / "gate", attempt=2), "attempts=2"]], *SLURM)
    submitit.submit(sweep.folder, sweep.cells)
    sweep.wait_for(lambda: sweep.cell(0).status["attempts"]["finished"] == 1)
    sweep.wait_for_agent(0)
    finished = sweep.cell(0).mtimes()["hello__001"]
    pid = sweep.cell(0).status["launcher"]["pid"]
    bare_slurm.call("scontrol", "requeue", sweep.launcher(0)["job_id"])
    sweep.open()
    assert str(sweep.wait()[0].where) == "over"
    assert sweep.cell(0).outcomes == ["scored", "scored"]
    assert sweep.cell(0).mtimes()["hello__001"] == finished
    assert sweep.cell(0).status["launcher"]["pid"] != pid
    assert sweep.launcher(0)["requeues"] == 0


def test_requeues_are_bounded(make_sweep, tmp_path, bare_slurm):
    sweep = make_sweep([waits(tmp_path / "gate")], *SLURM, "launcher.max_requeues=1")
    submitit.submit(sweep.folder, sweep.cells)
    job_id = None
    for expected in (0, 1):
        sweep.wait_for(lambda n=expected: sweep.launcher(0)["requeues"] == n)
        sweep.wait_for_agent(0)
        job_id = sweep.launcher(0)["job_id"]
        bare_slurm.call("scancel", "--signal=USR2", job_id)  # what Slurm sends before the time limit
    found = sweep.wait()
    assert str(found[0].where) == "over"
    assert sweep.cell(0).status["state"] == "failed"
    assert "had been requeued 1 times already" in sweep.launcher(0)["error"]
    assert sweep.leftovers() == []


def test_the_submitting_process_is_killed(make_sweep, tmp_path, slurm):
    sweep = make_sweep([waits(tmp_path / "gate")] * 2, *SLURM)
    program = "import sys; from pathlib import Path; from rich.console import Console\n"
    program += "from ptb_runner.cell import read_cell; from ptb_runner.launch import launch\n"
    program += "folder = Path(sys.argv[1]); launch(folder, [read_cell(folder / n) for n in '01'], Console())"
    submitter = subprocess.Popen([sys.executable, "-c", program, str(sweep.folder)], stdout=subprocess.DEVNULL)
    sweep.wait_for_agent(0)
    submitter.kill()
    submitter.wait()
    sweep.open()
    sweep.wait()
    assert sweep.outcomes == ["scored", "scored"]


def test_an_unknown_partition_and_what_sbatch_refuses(make_sweep, bare_slurm):
    sweep = make_sweep([HONEST], *SLURM, "launcher.partition=gpu")
    config = sweep.cells[0].config
    assert submitit.problems(config.launcher, [config]) == [
        "launcher.partition=gpu: no such partition\n  it is one of: main"
    ]
    with pytest.raises(UsageError, match=r"sbatch refused 1 cells: .*invalid partition"):
        submitit.submit(sweep.folder, sweep.cells)
    assert sweep.where == {0: "lost"}
