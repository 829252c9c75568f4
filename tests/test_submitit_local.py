"""Cells in background processes on this machine: launcher=submitit_local, without any Slurm."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ptb_runner.launch import Ended, frozen, job, slurm, submitit
from ptb_runner.paths import PACKAGE
from tests.launch_kit import HONEST, waits
from tests.run_kit import QUICK, agent

LOCAL = "launcher=submitit_local"
PROGRAM = (
    "import sys; from pathlib import Path; from ptb_runner.launch.job import CellJob; CellJob(Path(sys.argv[1]))()"
)
RUN_JOB = (sys.executable, "-c", PROGRAM)


def test_a_failing_cell_stops_no_other(make_sweep):
    sweep = make_sweep([HONEST, agent("Raises"), HONEST, HONEST], LOCAL, "launcher.max_cells=4", "retry.infra_errors=0")
    changed = sweep.cells[2].task / "instruction.md"
    changed.write_text("something else")
    submitit.submit(sweep.folder, sweep.cells)
    found = sweep.wait()
    assert {number: str(one.where) for number, one in found.items()} == dict.fromkeys(range(4), "over")
    assert sweep.outcomes == ["scored", "infra_error", None, "scored"]
    assert sweep.cell(2).status["state"] == "failed"
    assert "task was changed" in sweep.launcher(2)["error"]
    assert "hello__001" in sweep.cell(0).log
    assert sweep.leftovers() == []
    before = sweep.cell(0).mtimes()
    submitit.submit(sweep.folder, [sweep.cells[0], sweep.cells[3]])  # nothing is due
    assert sweep.cell(0).mtimes() == before
    assert sweep.launcher(0)["ended_at"]


def test_a_killed_runner_is_lost_and_the_rest_runs_detached(make_sweep, tmp_path):
    """kill -9 of the process that submitted, then of a cell's runner; everything is known from the folder."""
    sweep = make_sweep([waits(tmp_path / "gate")] * 3, LOCAL, "launcher.max_cells=2")
    program = "import sys; from pathlib import Path; from rich.console import Console\n"
    program += "from ptb_runner.cell import read_cell; from ptb_runner.launch import launch\n"
    program += "folder = Path(sys.argv[1]); launch(folder, [read_cell(folder / n) for n in '012'], Console())"
    submitter = subprocess.Popen([sys.executable, "-c", program, str(sweep.folder)], stdout=subprocess.DEVNULL)
    sweep.wait_for_agent(0)
    sweep.wait_for_agent(1)
    submitter.kill()
    submitter.wait()
    assert sweep.where == {0: "running", 1: "running", 2: "queued"}
    submitit.submit(sweep.folder, sweep.cells)  # they all have a job: no second one
    os.kill(sweep.cell(0).status["launcher"]["pid"], signal.SIGKILL)
    sweep.wait_for_agent(2)  # its place is free
    sweep.open()
    found = sweep.wait()
    assert [str(found[number].where) for number in range(3)] == ["lost", "over", "over"]
    assert sweep.cell(0).status["state"] == "lost"
    assert sweep.outcomes[1:] == ["scored", "scored"]
    submitit.submit(sweep.folder, sweep.cells)
    assert sweep.cell(0).status["state"] == "planned"
    sweep.wait()
    assert sweep.outcomes == ["scored"] * 3


def test_a_single_cell_is_a_sweep_of_one(ptb):
    ran = ptb(*QUICK, "agent=oracle", LOCAL, "hydra.run.dir=run")
    assert ran.code == 0, ran.out + ran.err
    assert "1/1 planned trials scored" in ran.out
    assert Path("run/0/result.json").is_file()
    alone = ptb(*QUICK, "agent=oracle", "hydra.run.dir=alone", "dry_run=true")
    assert alone.code == 0
    ran = ptb(*QUICK, "agent=oracle", LOCAL, "hydra.run.dir=alone")
    assert (ran.code, "holds a cell that ran by itself" in ran.err) == (2, True)


def test_cancel_one_then_all(make_sweep, tmp_path):
    sweep = make_sweep([waits(tmp_path / "gate")] * 3, LOCAL, "launcher.max_cells=1")
    submitit.submit(sweep.folder, sweep.cells)
    sweep.wait_for_agent(0)
    assert submitit.cancel(sweep.folder, [1]) == []
    assert sweep.where == {0: "running", 1: "cancelled", 2: "queued"}
    assert submitit.cancel(sweep.folder) == []
    assert [sweep.cell(number).status["state"] for number in range(3)] == ["cancelled"] * 3
    assert sweep.leftovers() == []
    time.sleep(0.5)
    assert sweep.where == dict.fromkeys(range(3), "cancelled")
    assert not (sweep.folder / "2" / "job").exists()


@pytest.mark.parametrize(("choice", "expected"), [("leave", Ended.detached), ("cancel", Ended.interrupted)])
def test_interrupt_while_waiting(make_sweep, tmp_path, monkeypatch, choice, expected):
    from rich.console import Console

    sweep = make_sweep([waits(tmp_path / "gate")], LOCAL, f"launcher.on_interrupt={choice}")

    def interrupted(*_):
        sweep.wait_for_agent(0)
        raise KeyboardInterrupt

    monkeypatch.setattr(submitit, "wait", interrupted)
    assert submitit.launch(sweep.folder, sweep.cells, Console(quiet=True)) is expected
    assert sweep.where == {0: "running" if choice == "leave" else "cancelled"}


def test_a_job_that_finds_another_runner_ends_quietly(make_sweep, tmp_path):
    sweep = make_sweep([waits(tmp_path / "gate")], LOCAL)
    submitit.submit(sweep.folder, sweep.cells)
    sweep.wait_for_agent(0)
    subprocess.run([*RUN_JOB, sweep.folder / "0"], check=True, timeout=30)
    assert sweep.launcher(0)["error"] is None
    sweep.open()
    sweep.wait()
    assert sweep.outcomes == ["scored"]


def test_a_signal_that_comes_too_early_is_kept_until_someone_listens():
    program = """
import os, signal, time
from ptb_runner.launch.job import _passing_on_signals
with _passing_on_signals() as received:
    os.kill(os.getpid(), signal.SIGUSR2)
    heard = []
    signal.signal(signal.SIGTERM, lambda *_: heard.append(1))
    time.sleep(0.5)
    assert heard == [1] and received == {signal.SIGUSR2}, (heard, received)
"""
    assert subprocess.run([sys.executable, "-c", program], timeout=30).returncode == 0


@pytest.mark.parametrize("number", ["SIGTERM", "SIGUSR2"])
def test_a_trial_whose_sandbox_died_of_the_signal_is_run_again(make_sweep, tmp_path, number):
    """Slurm signals every process of a job; what a sandbox's death looks like is not the trial's own failure."""
    dies = agent("DiesOfTheSignal", counter=str(tmp_path / "counter"), number=number)
    sweep = make_sweep([dies], LOCAL)
    subprocess.run([*RUN_JOB, sweep.folder / "0"], check=True, timeout=30)
    assert sweep.cell(0).status["state"] == "cancelled"
    subprocess.run([*RUN_JOB, sweep.folder / "0"], check=True, timeout=30)
    assert sweep.outcomes == ["scored"]
    assert [path.name for path in (sweep.folder / "0" / "superseded").iterdir()] == ["hello__001.1"]


# --- A cluster that does not answer -------------------------------------------------------------------


@pytest.fixture
def silent_cluster(tmp_path, monkeypatch) -> None:
    """Slurm's clients as they are when no controller answers: they hang."""
    clients = tmp_path / "bin"
    clients.mkdir()
    for name in ("sbatch", "srun", "squeue", "sacct", "sinfo", "scontrol", "scancel"):
        (clients / name).write_text("#!/bin/sh\nexec sleep 60\n")
        (clients / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{clients}:{os.environ['PATH']}")
    monkeypatch.setattr(slurm, "CLIENT_SEC", 0.3)


def test_a_silent_cluster_is_waited_for_only_so_long(make_sweep, silent_cluster, monkeypatch):
    sweep = make_sweep([HONEST], "launcher=slurm")
    job.record(sweep.folder / "0", kind="slurm", job_id="7")
    assert sweep.where == {0: "unknown"}
    monkeypatch.setattr(submitit, "SILENCE_SEC", 1.0)
    started = time.monotonic()
    assert str(sweep.wait()[0].where) == "lost"
    assert time.monotonic() - started < 5
    assert "no Slurm controller has answered" in sweep.cell(0).status["error"]
    (sweep.folder / "0" / "launcher.json").unlink()  # nothing to cancel


def test_checks_before_submission(make_sweep, silent_cluster, monkeypatch):
    sweep = make_sweep([HONEST], "launcher=slurm", "launcher.time_hours=0.1", "+launcher.extra.array=1-3")
    config = sweep.cells[0].config
    found = submitit.problems(config.launcher, [config, config])
    assert [text.split(":")[0] for text in found] == [
        "launcher.extra.array",
        "launcher.time_hours=0.1",
        "launcher=slurm",
    ]
    assert "type launcher.time_hours=0.24 or more" in found[1]
    assert "no Slurm controller answers" in found[2]
    monkeypatch.setenv("PATH", "/nowhere")
    assert "there is no sbatch here" in submitit.problems(config.launcher, [config])[-1]


# --- What jobs run from -------------------------------------------------------------------------------


def test_the_copy_of_the_code_is_whole_and_named_by_its_content(make_sweep):
    sweep = make_sweep([HONEST], LOCAL)
    code = frozen.freeze(sweep.folder, [sweep.cells[0].config])
    assert frozen.freeze(sweep.folder, [sweep.cells[0].config]) == code
    assert [path.name for path in code.parent.iterdir()] == [code.name]
    assert (code / "tests" / "agents.py").exists()  # the agent's own module
    program = "import ptb_runner.paths as p, tests.agents as a; print(p.PACKAGE, p.CONF, p.TEMPLATES, a.__file__)"
    environment = {**os.environ, **frozen.environment(code)}
    said = subprocess.run(
        [sys.executable, "-c", program], env=environment, cwd=PACKAGE.parent, capture_output=True, text=True, check=True
    )
    assert all(Path(place).is_relative_to(code) for place in said.stdout.split()), said.stdout
