"""What all tests share: the command line in this process, and in a fresh one."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

os.environ["HARBOR_TELEMETRY"] = "0"
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"

# `tests.agents` and `tests.run_kit` are found from anywhere, also by processes that tests start.
ROOT = str(Path(__file__).resolve().parents[1])
sys.path.insert(0, ROOT)
os.environ["PYTHONPATH"] = ROOT

from tests import beaker_cells_kit, beaker_kit, launch_kit, modal_kit  # noqa: E402

make_sweep = launch_kit.make_sweep
accounted_cluster, slurm = launch_kit.accounted_cluster, launch_kit.slurm
running_server, modal_server = modal_kit.running_server, modal_kit.modal_server
running_beaker, beaker_server = beaker_kit.running_beaker, beaker_kit.beaker_server
finished_cell, beaker_cells = beaker_cells_kit.finished_cell, beaker_cells_kit.beaker_cells
weka_here = beaker_cells_kit.weka_here
beaker_client, silent_address = beaker_kit.beaker_client, beaker_kit.silent_address
bare_cluster, bare_slurm = launch_kit.bare_cluster, launch_kit.bare_slurm


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """A worker a core for the whole default suite; marked tests share services, single files start faster alone."""
    whole = not config.option.file_or_dir and config.option.markexpr.startswith("not ")
    return min(os.cpu_count() or 1, 4) if whole else 0


@dataclass(frozen=True)
class Ran:
    """A finished command."""

    code: int
    out: str
    err: str


@pytest.fixture
def ptb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Ran]:
    """Run a command line in this process, standing in an empty folder; as fast as the program itself."""
    from hydra.core.global_hydra import GlobalHydra

    from ptb_runner import cli

    folder = tmp_path / "cwd"
    folder.mkdir(exist_ok=True)
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "argv", list(sys.argv))
    monkeypatch.setattr(sys, "path", list(sys.path))

    def run(*arguments: str | Path) -> Ran:
        GlobalHydra.instance().clear()
        capsys.readouterr()
        try:
            code = cli.main([str(argument) for argument in arguments])
        finally:
            _close_log_files()
        out, err = capsys.readouterr()
        return Ran(code, out, err)

    return run


def _close_log_files() -> None:
    """A process ends with its run; this one goes on, and the run's folder may be gone."""
    root = logging.getLogger()
    for handler in [one for one in root.handlers if isinstance(one, logging.FileHandler)]:
        root.removeHandler(handler)
        handler.close()


@pytest.fixture
def ptb_process(tmp_path: Path) -> Callable[..., Ran]:
    """Run a command line in a process of its own, as a shell does."""

    def run(*arguments: str | Path, cwd: Path = tmp_path, env: dict[str, str] | None = None) -> Ran:
        command = [sys.executable, "-m", "ptb_runner", *map(str, arguments)]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=240, cwd=cwd, env={**os.environ, **(env or {})}
        )
        return Ran(done.returncode, done.stdout, done.stderr)

    return run
