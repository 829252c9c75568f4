"""What tests of whole runs share: reading a cell's folder, task folders of one's own, watching processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

CUSTOM = ("agent=custom", "agent.id=test")
QUICK = ("benchmark=hello", "retry.wait_sec=0")


def agent(name: str, **options: Any) -> list[str]:
    """Overrides that choose an agent of tests/agents.py."""
    given = [f"agent.options.{key}={_quoted(value)}" for key, value in options.items()]
    return [*CUSTOM, f"agent.import_path=tests.agents:{name}", *given]


def _quoted(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}:{_quoted(one)}" for key, one in value.items()) + "}"
    if isinstance(value, str):
        return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"
    return json.dumps(value)


@dataclass(frozen=True)
class Cell:
    """A cell's folder, as one reads it afterwards."""

    folder: Path

    @property
    def result(self) -> dict[str, Any]:
        return json.loads((self.folder / "result.json").read_text())

    @property
    def status(self) -> dict[str, Any]:
        return json.loads((self.folder / "status.json").read_text())

    @property
    def log(self) -> str:
        return (self.folder / "runner.log").read_text()

    @property
    def outcomes(self) -> list[str]:
        return [trial["outcome"] for trial in self.result["trials"]]

    def trial(self, number: int = 1) -> dict[str, Any]:
        return next(trial for trial in self.result["trials"] if trial["attempt"] == number)

    def mtimes(self) -> dict[str, int]:
        """When each trial's result.json was last written, by trial."""
        return {path.parent.name: path.stat().st_mtime_ns for path in self.folder.glob("job/*/result.json")}


def only_cell(below: Path | None = None) -> Cell:
    """The one cell below a folder (default: where we stand)."""
    found = list((below or Path.cwd()).glob("outputs/*/*/cell.yaml"))
    assert len(found) == 1, f"expected one cell, found {found}"
    return Cell(found[0].parent)


def make_task(folder: Path, test: str, toml: str = "", instruction: str = "Do it.\n") -> Path:
    """A Harbor task folder of one's own: `test` is what tests/test.sh does."""
    (folder / "environment").mkdir(parents=True)
    (folder / "environment" / ".gitkeep").touch()
    (folder / "tests").mkdir()
    (folder / "tests" / "test.sh").write_text(f"#!/usr/bin/env bash\n{test}\n")
    (folder / "tests" / "test.sh").chmod(0o755)
    (folder / "instruction.md").write_text(instruction)
    (folder / "task.toml").write_text(toml or TASK_TOML)
    return folder


def make_registry(folder: Path, names: tuple[str, ...], test: str, toml: str = "") -> Path:
    """A registry file in Harbor's form with the dataset fruit@1.0, whose tasks lie beside it."""
    for name in names:
        make_task(folder / name, test, toml)
    tasks = [{"name": name, "path": name} for name in names]
    path = folder / "registry.json"
    path.write_text(json.dumps([{"name": "fruit", "version": "1.0", "description": "", "tasks": tasks}]))
    return path


TASK_TOML = """\
schema_version = "1.1"
artifacts = [{ source = "/app/answer.txt" }]
[task]
name = "own/mine"
[agent]
timeout_sec = 60
[environment]
workdir = "/app"
network_mode = "no-network"
[verifier]
timeout_sec = 60
environment_mode = "separate"
network_mode = "no-network"
[verifier.environment]
workdir = "/app"
network_mode = "no-network"
"""

REWARD_IF_OK = 'if [ "$(cat answer.txt)" = ok ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt'


# --- Processes ----------------------------------------------------------------------------------------


def is_alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@dataclass
class Running:
    """A command under way in a process of its own; `cell` is its folder, `scratch` its sandboxes' place."""

    process: subprocess.Popen[str]
    cell: Cell
    scratch: Path

    def wait_for(self, wanted: Callable[[dict[str, Any]], bool], timeout_sec: float = 30) -> None:
        """Wait until the status says so."""
        deadline = time.monotonic() + timeout_sec
        while time.monotonic() < deadline:
            if (self.cell.folder / "status.json").exists() and wanted(self.cell.status):
                return
            if self.process.poll() is not None:
                out, err = self.process.communicate()
                raise AssertionError(f"ended with {self.process.returncode} before that:\n{out}\n{err}")
            time.sleep(0.02)
        raise AssertionError(f"not within {timeout_sec} s; status: {self.cell.status}")

    def descendants(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)

    def leftovers(self, processes: list[psutil.Process]) -> list[Any]:
        """What is left of sandboxes: processes that still run, and scratch folders."""
        return [*filter(is_alive, processes), *self.scratch.glob("ptb-sandboxes-*/*")]

    def end(self, number: int, within_sec: float = 3, times: int = 1) -> int:
        """Send a signal, check that all is gone in time, and return the exit code."""
        family = self.descendants()
        for _ in range(times):
            self.process.send_signal(number)
            time.sleep(0.02)
        deadline = time.monotonic() + within_sec
        while self.leftovers(family) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert self.leftovers(family) == []
        return self.process.wait(timeout=60)


def start(tmp_path: Path, *arguments: str | Path, **environment: str) -> Running:
    """Start a run in a process of its own, in tmp_path/run, with its sandboxes below tmp_path/scratch."""
    scratch = tmp_path / "scratch"
    scratch.mkdir(exist_ok=True)
    command = [sys.executable, "-m", "ptb_runner", *map(str, arguments)]
    if not arguments or arguments[0] != "resume":
        command += [f"hydra.run.dir={tmp_path / 'run'}", f"backend.scratch_dir={scratch}"]
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        env={**os.environ, **environment},
    )
    return Running(process, Cell(tmp_path / "run"), scratch)


def in_phase(phase: str) -> Callable[[dict[str, Any]], bool]:
    """Whether some trial is in that phase, by its status."""
    return lambda status: phase in status["attempts"]["running"].values()
