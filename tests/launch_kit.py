"""What tests of launchers share: sweeps of small cells on disk, and a real Slurm of one node."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra

from ptb_runner import config as configs
from ptb_runner import sweep as sweeps
from ptb_runner.cell import Cell
from ptb_runner.launch import job, submitit
from ptb_runner.paths import CONF
from tests import run_kit
from tests.run_kit import QUICK, agent

HONEST = agent("Honest")
SCRIPTS = Path(__file__).parent / "slurm"


@dataclass(frozen=True)
class Sweep:
    """A sweep's folder and its cells; trials of waiting agents end when the gate is opened."""

    folder: Path
    cells: list[Cell]
    gate: Path
    scratch: Path

    def cell(self, number: int) -> run_kit.Cell:
        return run_kit.Cell(self.folder / str(number))

    def launcher(self, number: int) -> dict[str, Any]:
        return job.read(self.folder / str(number))

    @property
    def where(self) -> dict[int, str]:
        return {number: str(one.where) for number, one in submitit.states(self.folder).items()}

    @property
    def outcomes(self) -> list[str | None]:
        return [self.cell(number).status["outcome"] for number in range(len(self.cells))]

    def open(self) -> None:
        (self.gate / "open").touch()

    def wait(self, poll_sec: float = 0.2) -> dict[int, submitit.JobState]:
        return submitit.wait(self.folder, self.cells, poll_sec)

    def wait_for(self, said: Callable[[], bool], timeout_sec: float = 40) -> None:
        deadline = time.monotonic() + timeout_sec
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError, ValueError):
                if said():
                    return
            time.sleep(0.05)
        jobs = {number: self.launcher(number) for number in range(len(self.cells))}
        raise AssertionError(f"not within {timeout_sec} s: {self.where}, {jobs}")

    def wait_for_agent(self, number: int = 0) -> None:
        """Until an agent is at work in that cell."""
        self.wait_for(lambda: run_kit.in_phase("agent")(self.cell(number).status))

    def leftovers(self) -> list[Path]:
        return list(self.scratch.glob("ptb-sandboxes-*/*"))


def waits(gate: Path, attempt: int | None = None) -> list[str]:
    """An agent that answers only when the gate is open; with `attempt`, only in that attempt."""
    command = f"while [ ! -e {gate}/open ]; do sleep 0.05; done; printf ok > answer.txt"
    options = {"command": command} if attempt is None else {"command": "printf ok > answer.txt"}
    return agent("Scripted", **options, **({} if attempt is None else {"by_attempt": {attempt: command}}))


@pytest.fixture
def make_sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Sweep]]:
    """Prepare a sweep: a list of overrides a cell, of benchmark hello; whatever still runs at the end is cancelled."""
    made: list[Path] = []

    def make(cells: list[list[str]], *common: str) -> Sweep:
        folder, gate, scratch = (tmp_path / name for name in (f"sweep{len(made)}", "gate", "scratch"))
        for place in (folder, gate, scratch):
            place.mkdir(exist_ok=True)
        made.append(folder)
        places = [f"backend.scratch_dir={scratch}", f"backend.read_only_paths=[{gate}]"]
        given = [composed(number, [*QUICK, *own, *common, *places]) for number, own in enumerate(cells)]
        return Sweep(folder, sweeps.prepare(folder, given), gate, scratch)

    yield make
    for folder in made:  # while SLURM_CONF, set through monkeypatch, still stands
        assert submitit.cancel(folder, timeout_sec=30) == []


def composed(number: int, overrides: list[str]) -> sweeps.Composed:
    """A cell of a sweep, not yet prepared."""
    configs.register()
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(CONF), version_base="1.3"):
        config = compose("config", [f"++{one}" if one.startswith("agent.options.") else one for one in overrides])
    return sweeps.Composed(number, overrides, configs.typed(config), configs.without_secrets(config))


# --- Slurm --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cluster:
    """A running Slurm; the processes of a test find it through SLURM_CONF."""

    conf: Path

    def call(self, *command: str) -> str:
        environment = {**os.environ, "SLURM_CONF": str(self.conf)}
        return subprocess.run(command, env=environment, check=True, capture_output=True, text=True, timeout=20).stdout


@contextlib.contextmanager
def _cluster(folder: Path, *, accounting: bool, **settings: str) -> Iterator[Cluster]:
    missing = [name for name in ("sbatch", "slurmctld", "munged") if not shutil.which(name, path=_path())]
    missing += ["slurmdbd"] if accounting and not shutil.which("slurmdbd", path=_path()) else []
    if missing:
        pytest.skip(f"needs a real Slurm, not found: {', '.join(missing)} (apt-get install slurm-wlm munge slurmdbd)")
    if os.geteuid() != 0:
        pytest.skip("the test's own Slurm is started as root")
    environment = {
        **os.environ,
        "PATH": _path(),
        "SLURM_TEST_DIR": str(folder),
        "SLURM_TEST_PORT": str(_free_ports()),
        "SLURM_TEST_DBD": "1" if accounting else "0",
        **settings,
    }
    try:
        up = subprocess.run(
            [SCRIPTS / "slurm_up.sh"], env=environment, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        assert up.returncode == 0, up.stderr
        yield Cluster(folder / "slurm.conf")
    finally:
        subprocess.run([SCRIPTS / "slurm_down.sh"], env=environment, check=True, timeout=60)


def _path() -> str:
    return f"{os.environ['PATH']}:/usr/sbin:/sbin"


def _free_ports() -> int:
    """The first of three ports in a row that are free."""
    for first in range(16800 + os.getpid() % 100 * 30, 40000, 3):
        with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
            for port in range(first, first + 3):
                stack.enter_context(socket.socket()).bind(("127.0.0.1", port))
            return first
    raise AssertionError("no free ports")


@pytest.fixture(scope="session")
def accounted_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with _cluster(tmp_path_factory.mktemp("slurm"), accounting=True) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def bare_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with _cluster(tmp_path_factory.mktemp("bare"), accounting=False, SLURM_TEST_MAX_ARRAY="3") as cluster:
        yield cluster


@pytest.fixture
def slurm(accounted_cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """A real Slurm with accounting."""
    monkeypatch.setenv("SLURM_CONF", str(accounted_cluster.conf))
    return accounted_cluster


@pytest.fixture
def bare_slurm(bare_cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """A real Slurm without accounting, on which an array has at most three tasks."""
    monkeypatch.setenv("SLURM_CONF", str(bare_cluster.conf))
    return bare_cluster
