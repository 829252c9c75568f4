"""launcher=modal: runners in Modal functions, with the real client and its own container program on a fake Modal."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests import run_kit
from tests.fakes.modal_server.handle import ModalServer
from tests.run_kit import QUICK, agent

pytestmark = [pytest.mark.modal, pytest.mark.timeout(300)]

MODAL = ("launcher=modal", "launcher.sync_sec=1", "launcher.poll_sec=0.5")
SECRET = "-".join(["sk", "made", "up", "for", "this", "4711"])  # in no file as a whole: sweeps hold copies of this one


@dataclass(frozen=True)
class Sweep:
    folder: Path
    server: ModalServer

    def cell(self, number: int = 0) -> run_kit.Cell:
        return run_kit.Cell(self.folder / str(number))

    @property
    def launcher(self) -> dict[str, Any]:
        return json.loads((self.folder / "launcher.json").read_text())

    @property
    def calls(self) -> list[dict[str, Any]]:
        return self.server.state()["function_calls"]

    def wait_for(self, said: Callable[[], bool], timeout_sec: float = 90) -> None:
        deadline = time.monotonic() + timeout_sec
        while not said():
            assert time.monotonic() < deadline, [Path(one["output"]).read_text()[-3000:] for one in self.calls]
            time.sleep(0.2)

    def left(self) -> list[Any]:
        """What is left of it at Modal."""
        state = self.server.state()
        running = [one for one in (*state["function_calls"], *state["sandboxes"]) if one["running"]]
        return [*running, *(name for name in (*state["apps"], *self.server.volumes()) if name.startswith("sweep-"))]


@pytest.fixture
def sweep(modal_server, tmp_path) -> Iterator[Sweep]:
    yield Sweep(tmp_path / "sweep", modal_server)
    for call in modal_server.state()["function_calls"]:
        if call["running"]:
            os.kill(call["pid"], 9)


def test_a_sweep_runs_in_functions(ptb, sweep):
    options = (*QUICK, *MODAL, f"hydra.sweep.dir={sweep.folder}")
    ran = ptb("-m", *options, *agent("Honest"), "seed=1,2", "attempts=2")
    assert ran.code == 0, ran.out + ran.err
    assert [sweep.cell(number).outcomes for number in (0, 1)] == [["scored"] * 2] * 2
    assert "4/4" in ran.out
    assert sweep.left() == []
    assert not sweep.launcher["app"]


def scripted(command: str) -> list[str]:
    return agent("Scripted", command=command)


def states(sweep: Sweep, ptb: Callable[..., Any]) -> list[str]:
    ran = ptb("status", sweep.folder, "--json")
    return [one["state"] for one in json.loads(ran.out)]


def test_detached_then_looked_at_then_stopped(ptb, sweep, monkeypatch):
    """Only the folder is needed afterwards; what is stopped leaves nothing, and resume does the rest."""
    monkeypatch.setenv("FAKE_API_KEY", SECRET)
    options = (
        *QUICK,
        *MODAL,
        f"hydra.sweep.dir={sweep.folder}",
        "launcher.wait=false",
        "agent.env_vars=[FAKE_API_KEY]",
    )
    first = scripted("if [ $PTB_SEED = 2 ]; then sleep 120; fi; echo $FAKE_API_KEY; printf ok > answer.txt")
    ran = ptb("-m", *options, *first, "seed=1,2")
    assert ran.code == 0, ran.err
    assert f"ptb status {sweep.folder}" in ran.out
    assert all(one["id"] in sweep.launcher["calls"].values() for one in sweep.calls[-2:])
    assert set(sweep.server.volumes()) >= {sweep.launcher["volume"]}
    sweep.wait_for(lambda: states(sweep, ptb)[0] == "finished" and states(sweep, ptb)[1] == "running")
    assert sweep.cell(0).outcomes == ["scored"]  # fetched though the other one runs
    ptb("collect", sweep.folder)
    lines = [json.loads(line) for line in (sweep.folder / "results.jsonl").read_text().splitlines()]
    assert [line["outcome"] for line in lines] == ["scored"]
    sweep.wait_for(lambda: run_kit.in_phase("agent")(sweep.cell(1).status) or not states(sweep, ptb))
    assert "hello__001" in ptb("logs", sweep.folder, "1/hello__001").out + ptb("logs", sweep.folder, "1").out
    alone = ptb("status", sweep.folder / "1")
    assert "agent for" in alone.out
    assert "no runner is at work" not in alone.out
    assert "its runner is at work elsewhere" in ptb("resume", sweep.folder / "1").err
    before = sweep.cell(0).mtimes()
    stopped = ptb("stop", sweep.folder)
    assert stopped.code == 0, stopped.out
    assert states(sweep, ptb) == ["finished", "cancelled"]
    assert sweep.left() == []
    assert "signal" in sweep.cell(1).log  # it was asked to stop, and did so itself
    resumed = ptb("resume", sweep.folder)
    assert resumed.code == 0, resumed.err
    assert sweep.cell(0).mtimes() == before
    sweep.wait_for(lambda: states(sweep, ptb)[1] == "running")
    assert ptb("stop", sweep.folder).code == 0
    assert SECRET not in everything_below(sweep.folder, sweep.server.folder / "volumes")


def everything_below(*folders: Path) -> str:
    found = [path for folder in folders for path in folder.rglob("*") if path.is_file()]
    return "".join(path.read_bytes().decode(errors="replace") for path in found)


def test_a_call_whose_container_is_lost_is_lost_and_resumed(ptb, sweep):
    """The trial that was over is not run again; the one under way is."""
    slow = agent("Scripted", by_attempt={2: "sleep 120"}, command="printf ok > answer.txt")
    options = (*QUICK, *MODAL, f"hydra.sweep.dir={sweep.folder}", "launcher.wait=false", "concurrency=1", "attempts=2")
    assert ptb("-m", *options, *slow).code == 0
    volume = sweep.server.volumes()[sweep.launcher["volume"]]
    sweep.wait_for(lambda: any(volume.glob("0-1/cell/job/hello__001/result.json")))
    sweep.wait_for(lambda: any(volume.glob("0-1/cell/job/hello__002")))
    os.killpg(sweep.calls[-1]["pid"], 9)
    sweep.wait_for(lambda: states(sweep, ptb) == ["lost"])
    assert sweep.cell().mtimes().keys() == {"hello__001"}
    assert "container ended" in sweep.cell().status["error"]
    assert sweep.left() == []
    assert ptb("resume", sweep.folder).code == 0
    sweep.wait_for(lambda: states(sweep, ptb) == ["running"])
    assert ptb("stop", sweep.folder).code == 0
    assert "hello__002.1" in [path.name for path in (sweep.folder / "0" / "superseded").iterdir()]


def test_a_cell_whose_time_is_up_stops_cleanly(ptb, sweep, monkeypatch):
    monkeypatch.setattr("ptb_runner.launch.modal._OVERHEAD_SEC", 24 * 3600 - 12)
    options = (*QUICK, *MODAL, f"hydra.sweep.dir={sweep.folder}")
    assert ptb("-m", *options, *scripted("sleep 120")).code == 1
    assert states(sweep, ptb) == ["lost"]
    assert "time was up" in sweep.cell().status["error"]
    assert sweep.left() == []


def test_what_a_function_lacks_is_told_before_any_trial(ptb, sweep, monkeypatch):
    """A key that was to be in Modal's secret, and is not; and one that is."""
    monkeypatch.delenv("FAKE_API_KEY", raising=False)
    sweep.server.secret("other-keys", ANOTHER="x")
    sweep.server.secret("my-keys", FAKE_API_KEY=SECRET)
    needs = (*QUICK, *MODAL, "agent.env_vars=[FAKE_API_KEY]", *agent("Honest"))
    without = ptb("-m", *needs, f"hydra.sweep.dir={sweep.folder}", "launcher.secrets=[other-keys]")
    assert without.code == 1
    assert "FAKE_API_KEY: this variable is needed and is not set" in sweep.cell().status["error"]
    assert not (sweep.folder / "0" / "job").exists()
    held = sweep.folder.with_name("held")
    assert ptb("-m", *needs, f"hydra.sweep.dir={held}", "launcher.secrets=[my-keys]").code == 0
    assert run_kit.Cell(held / "0").outcomes == ["scored"]
    assert SECRET not in everything_below(held)


def test_what_cannot_run_in_functions_is_refused_before_anything_is_created(ptb, sweep):
    made = sweep.server.calls("AppCreate"), sweep.server.calls("VolumeGetOrCreate")
    base = ("-m", *QUICK, *MODAL, *agent("Honest"), f"hydra.sweep.dir={sweep.folder}")
    long = ptb(*base, "attempts=100", "concurrency=1")
    assert long.code == 2
    assert "launcher.timeout_hours=24: too short for 100 trials" in long.err
    assert "raise concurrency" in long.err
    held = ptb(*base, "launcher.secrets=[no-such-secret]")
    assert held.code == 2
    assert "no-such-secret" in held.err
    assert "Traceback" not in held.err
    assert (sweep.server.calls("AppCreate"), sweep.server.calls("VolumeGetOrCreate")) >= made
    ptb("stop", sweep.folder)
    assert sweep.left() == []


def test_a_sweep_whose_folder_is_gone_is_listed_and_removed_when_it_is_over(ptb, sweep):
    import modal

    modal.Volume.objects.create("sweep-of-another-machine")
    options = (*QUICK, *MODAL, "launcher.wait=false", f"hydra.sweep.dir={sweep.folder}")
    assert ptb("-m", *options, *scripted("sleep 120")).code == 0
    name = sweep.launcher["volume"]
    assert f"{name}: of {sweep.folder}; ptb status" in unwrapped(ptb("doctor", "backend=modal").out)
    shutil.rmtree(sweep.folder)
    told = unwrapped(ptb("doctor", "backend=modal").out)
    assert "sweep-of-another-machine: of another machine, left alone" in told
    assert f"{name}: its sweep {sweep.folder} is gone" in told
    assert "1 of its cells still run; to end them: modal app stop" in told
    assert "0 leftovers removed" in ptb("clean", "backend=modal", "--sweeps").out
    os.killpg(sweep.calls[-1]["pid"], 9)
    sweep.wait_for(lambda: "its cells are over" in unwrapped(ptb("doctor", "backend=modal").out))
    plain = ptb("clean", "backend=modal")
    assert f"left {name}" in plain.out
    assert "0 leftovers removed" in plain.out
    assert f"removed the app and the results' volume {name}" in ptb("clean", "backend=modal", "--sweeps").out
    assert sweep.left() == ["sweep-of-another-machine"]


def unwrapped(text: str) -> str:
    return " ".join(text.split())


def test_sandboxes_of_a_runner_in_a_function_end_with_it(ptb, sweep):
    """backend=modal from within: it needs no token there; of a runner that was killed, the sweep's app takes all."""
    options = (*QUICK, *MODAL, "backend=modal", "launcher.wait=false")
    assert ptb("-m", *options, f"hydra.sweep.dir={sweep.folder}", *scripted("sleep 120")).code == 0
    sweep.wait_for(lambda: states(sweep, ptb) == ["running"] and len(sweep.server.sandboxes()) == 1)
    os.killpg(sweep.calls[-1]["pid"], 9)
    sweep.wait_for(lambda: states(sweep, ptb) == ["lost"])
    assert sweep.left() == []
    done = sweep.folder.with_name("done")
    options = (*QUICK, *MODAL, "backend=modal", "attempts=2")
    ran = ptb("-m", *options, f"hydra.sweep.dir={done}", *agent("Honest"))
    assert ran.code == 0, ran.out + ran.err
    assert run_kit.Cell(done / "0").outcomes == ["scored"] * 2
    assert sweep.left() == []
