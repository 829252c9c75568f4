"""Promise 17: submission returns, the results are collected from another process; arrays fit the cluster's limit."""

from __future__ import annotations

import subprocess
import sys

import pytest
from rich.console import Console

from ptb_runner.launch import Ended, launch, submitit
from tests.launch_kit import HONEST, Sweep, waits


def detached(sweep: Sweep) -> None:
    """Submit with launcher.wait=false, and wait in a new process that knows the folder only."""
    assert launch(sweep.folder, sweep.cells, Console(quiet=True)) is Ended.detached
    program = "import sys; from pathlib import Path; from ptb_runner.cell import read_cell\n"
    program += "from ptb_runner.launch.submitit import wait; folder = Path(sys.argv[1])\n"
    program += "found = wait(folder, [read_cell(folder / n) for n in '01'], 0.2)\n"
    program += "print(*(one.where for one in found.values()))"
    sweep.open()
    said = subprocess.run(
        [sys.executable, "-c", program, str(sweep.folder)], capture_output=True, text=True, check=True, timeout=100
    )
    assert said.stdout.split() == ["over", "over"]
    assert sweep.outcomes == ["scored", "scored"]


def test_local(make_sweep, tmp_path):
    detached(make_sweep([waits(tmp_path / "gate")] * 2, "launcher=submitit_local", "launcher.wait=false"))


@pytest.mark.slurm
def test_slurm(make_sweep, tmp_path, slurm):
    detached(make_sweep([waits(tmp_path / "gate")] * 2, "launcher=slurm", "launcher.wait=false"))


@pytest.mark.slurm
@pytest.mark.parametrize(("cluster", "limit"), [("bare_slurm", []), ("slurm", ["launcher.max_array_size=3"])])
def test_ten_cells_at_a_limit_of_three_are_four_arrays(make_sweep, request, cluster, limit):
    """The limit is the cluster's own, or the configuration's."""
    called = request.getfixturevalue(cluster)
    sweep = make_sweep([HONEST] * 10, "launcher=slurm", "launcher.array_parallelism=1", *limit)
    submitit.submit(sweep.folder, sweep.cells)
    arrays = [sweep.launcher(number)["array"] for number in range(10)]
    assert [arrays.count(array) for array in dict.fromkeys(arrays)] == [3, 3, 3, 1]
    ids = {sweep.launcher(number)["job_id"] for number in range(10)}
    assert ids <= {line.strip() for line in called.call("squeue", "-r", "-h", "--states=all", "-o", "%i").splitlines()}
