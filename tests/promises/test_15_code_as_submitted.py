"""Promise 15: a queued job runs the code and templates that were there when it was submitted."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ptb_runner.paths import PACKAGE
from tests.launch_kit import waits

ROOT = PACKAGE.parent


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout of one's own, with one's own agents, to be edited."""
    folder = tmp_path / "checkout"
    for name in ("ptb_runner", "conf", "templates", "tests"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    return folder


def check(make_sweep, tmp_path: Path, checkout: Path, *launcher: str) -> None:
    """Submit two cells that run one after the other, edit all files while the second is queued, and let them run."""
    sweep = make_sweep([waits(tmp_path / "gate"), waits(tmp_path / "gate")], *launcher)
    program = "import sys; from pathlib import Path; from ptb_runner.cell import read_cell\n"
    program += "from ptb_runner.launch.submitit import submit\n"
    program += "folder = Path(sys.argv[1]); submit(folder, [read_cell(folder / n) for n in '01'])"
    environment = {**os.environ, "PYTHONPATH": str(checkout)}
    subprocess.run([sys.executable, "-c", program, str(sweep.folder)], cwd=checkout, env=environment, check=True)
    sweep.wait_for_agent(0)
    assert sweep.where == {0: "running", 1: "queued"}
    for path in checkout.rglob("*.*"):
        if path.is_file():
            path.write_text("raise SystemExit('this was edited after submission')\n")
    sweep.open()
    sweep.wait()
    assert sweep.outcomes == ["scored", "scored"]
    code = sweep.folder / sweep.launcher(1)["code"]
    assert (code / "ptb_runner" / "run.py").read_text() == (PACKAGE / "run.py").read_text()


def test_local(make_sweep, tmp_path, checkout):
    check(make_sweep, tmp_path, checkout, "launcher=submitit_local", "launcher.max_cells=1")


@pytest.mark.slurm
def test_slurm(make_sweep, tmp_path, checkout, bare_slurm):
    check(make_sweep, tmp_path, checkout, "launcher=slurm", "launcher.array_parallelism=1")
