"""The wheel carries conf/ and templates/, and works from any folder once installed."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

pytestmark = [pytest.mark.wheel, pytest.mark.timeout(600)]

ROOT = Path(__file__).parent.parent


def run(*command: str | Path, cwd: Path, env: dict[str, str] | None = None) -> str:
    done = subprocess.run(
        [str(part) for part in command], cwd=cwd, env=env, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bin folder of a new environment that holds the wheel and nothing of the checkout."""
    folder = tmp_path_factory.mktemp("wheel")
    run("uv", "build", "--wheel", "--out-dir", folder, cwd=ROOT)
    run("uv", "venv", "--python", "3.12", folder / "venv", cwd=ROOT)
    (wheel,) = folder.glob("*.whl")
    run("uv", "pip", "install", "--python", folder / "venv" / "bin" / "python", wheel, cwd=folder)
    return folder / "venv" / "bin"


@pytest.fixture
def environment() -> dict[str, str]:
    """The environment without what points into the checkout."""
    return {key: value for key, value in os.environ.items() if key not in ("VIRTUAL_ENV", "PYTHONPATH")}


def test_dry_run_from_another_folder(installed, environment, tmp_path):
    out = run(installed / "ptb", "dry_run=true", cwd=tmp_path, env=environment)
    assert "nothing was launched" in out
    assert len(list(tmp_path.glob("outputs/*/*/task/task.toml"))) == 1


def test_hello_from_another_folder(installed, environment, tmp_path):
    out = run(installed / "ptb", "benchmark=hello", "agent=oracle", cwd=tmp_path, env=environment)
    assert "1/1 trials passed" in out


def test_a_sweep_from_another_folder(installed, environment, tmp_path):
    """Hydra finds the sweeper and the launcher in the wheel."""
    out = run(installed / "ptb", "-m", "benchmark=hello", "agent=oracle,nop", cwd=tmp_path, env=environment)
    assert "2/2 planned trials scored" in out
    assert len(list(tmp_path.glob("multirun/*/*/sweep.yaml"))) == 1


def test_a_sweep_in_jobs_from_another_folder(installed, environment, tmp_path):
    """The code that a wheel installed is copied for jobs like a checkout's."""
    swept = ["-m", "benchmark=hello", "agent=oracle,nop", "launcher=submitit_local"]
    assert "2/2 planned trials scored" in run(installed / "ptb", *swept, cwd=tmp_path, env=environment)


def test_help_names_the_choices_of_the_installed_conf(installed, environment, tmp_path):
    assert "addition" in run(installed / "ptb", "--help", cwd=tmp_path, env=environment)
