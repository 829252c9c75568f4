"""Interrupted and killed runs, in processes of their own: nothing is left behind, and resume does only the rest."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path

import pytest

from tests.run_kit import TASK_TOML, Cell, agent, in_phase, is_alive, make_task, start

PHASES = ("sandbox", "agent", "verifier")
ORPHAN = "(setsid sleep 300 > /dev/null 2>&1 &)"


class Gated:
    """A cell each of whose phases waits while a file of its name lies in `gate`; its first trial is scored already."""

    def __init__(self, tmp_path: Path, ptb) -> None:
        self.gate = tmp_path / "gate"
        self.gate.mkdir()
        (tmp_path / "scratch").mkdir()
        stay = {phase: f"while [ -e {self.gate}/{phase} ]; do sleep 0.05; done" for phase in PHASES}
        check = f'\n[environment.healthcheck]\ncommand = "{ORPHAN}; {stay["sandbox"]}"\ntimeout_sec = 60\n'
        task = make_task(tmp_path / "mine", f"{ORPHAN}\n{stay['verifier']}\necho 1 > /logs/verifier/reward.txt")
        (task / "task.toml").write_text(TASK_TOML + check)
        self.arguments = [
            "benchmark=task",
            f"benchmark.path={task}",
            f"backend.read_only_paths=[{self.gate}]",
            *agent("Scripted", command=f"{ORPHAN}; {stay['agent']}; printf ok > answer.txt"),
            "concurrency=2",
        ]
        self.cell = Cell(tmp_path / "run")
        places = [f"hydra.run.dir={self.cell.folder}", f"backend.scratch_dir={tmp_path / 'scratch'}"]
        ran = ptb(*self.arguments, *places)
        assert ran.code == 0, ran.out + ran.err
        self.before = self.cell.mtimes()

    def shut(self, phase: str) -> None:
        (self.gate / phase).touch()

    def open(self) -> None:
        for file in self.gate.iterdir():
            file.unlink()


@pytest.fixture
def gated(tmp_path, ptb) -> Gated:
    return Gated(tmp_path, ptb)


def finish(gated: Gated, ptb, superseded: int) -> None:
    """Resume the cell: only what is missing is run, and what was left half done is kept aside."""
    gated.open()
    ran = ptb("resume", gated.cell.folder)
    assert ran.code == 0, ran.out + ran.err
    cell = gated.cell
    assert cell.outcomes == ["scored"] * 3
    assert cell.mtimes()["mine__001"] == gated.before["mine__001"]
    assert len(list(cell.folder.glob("superseded/*"))) == superseded
    assert (cell.status["state"], cell.status["outcome"]) == ("finished", "scored")
    job = json.loads((cell.folder / "job" / "result.json").read_text())
    assert job["stats"]["n_completed_trials"] == 3


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize(("number", "times"), [(signal.SIGINT, 2), (signal.SIGTERM, 1)], ids=["INT twice", "TERM"])
def test_an_interrupt_leaves_nothing_and_resume_does_the_rest(gated, ptb, tmp_path, phase, number, times):
    gated.shut(phase)
    running = start(tmp_path, *gated.arguments, "attempts=3")
    running.wait_for(lambda status: list(status["attempts"]["running"].values()) == [phase] * 2)
    time.sleep(0.2)  # the event comes a moment before the command
    assert len(running.descendants()) >= 4
    code = running.end(number, within_sec=3, times=times)
    out, err = running.process.communicate()
    assert code == 130, out + err
    assert "Traceback" not in out + err
    cell = gated.cell
    assert (cell.status["state"], cell.status["outcome"]) == ("cancelled", "cancelled")
    assert cell.outcomes == ["scored", "cancelled", "cancelled"]
    assert [trial["reward"] for trial in cell.result["trials"]] == [1, None, None]
    assert cell.result["score"]["n_scored"] == 1
    assert "next: ptb resume run" in out
    finish(gated, ptb, superseded=2)


def test_a_killed_runner_takes_its_sandboxes_along_and_resume_does_the_rest(gated, ptb, tmp_path):
    gated.shut("agent")
    running = start(tmp_path, *gated.arguments, "attempts=3")
    running.wait_for(in_phase("agent"))
    family = running.descendants()
    running.process.kill()
    deadline = time.monotonic() + 3
    while any(map(is_alive, family)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not list(filter(is_alive, family))

    assert gated.cell.status["state"] == "running"
    assert "no runner is at work on it; next: ptb resume" in ptb("status", gated.cell.folder).out
    finish(gated, ptb, superseded=2)
    assert list(running.scratch.glob("ptb-sandboxes-*/*")) == []


def test_an_interrupt_between_two_tries_ends_the_wait(tmp_path):
    running = start(
        tmp_path,
        "benchmark=hello",
        *agent("FailsFirst", counter=str(tmp_path / "n"), times=9),
        "retry.wait_sec=60",
    )
    running.wait_for(in_phase("waiting"))
    began = time.monotonic()
    assert running.end(signal.SIGTERM) == 130
    assert time.monotonic() - began < 3
    assert (tmp_path / "n").read_text() == "1"


def test_two_runners_on_one_folder(gated, tmp_path, ptb):
    gated.shut("agent")
    running = start(tmp_path, *gated.arguments, "attempts=2")
    running.wait_for(in_phase("agent"))
    before = (gated.cell.folder / "cell.yaml").read_bytes()
    ran = ptb("resume", gated.cell.folder)
    assert ran.code == 2
    assert f"another runner is at work on this cell (process {running.process.pid}" in ran.err
    assert (gated.cell.folder / "cell.yaml").read_bytes() == before
    gated.open()
    out, err = running.process.communicate(timeout=20)
    assert running.process.returncode == 0, out + err
    assert gated.cell.outcomes == ["scored"] * 2
