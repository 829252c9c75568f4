"""The two pairs of inspect-ai and inspect-evals, each in an environment of its own that later runs find again."""

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from filelock import FileLock

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ptb-tests"
PAIRS = {
    "new": ["inspect-ai==0.3.285", "inspect-evals==0.26.0", "openai>=3.4,<4"],
    "old": ["inspect-ai==0.3.150", "inspect-evals==0.3.103", "openai==2.17.0", "mpmath>=1.3,<2"],
}


def python_of(pair: str) -> Path:
    """The interpreter of a pair's environment, which is built, 570 MB, unless it is there."""
    packages = PAIRS[pair]
    name = f"inspect-{pair}-{sys.version_info[0]}.{sys.version_info[1]}"
    folder = CACHE / f"{name}-{hashlib.sha256(' '.join(packages).encode()).hexdigest()[:8]}"
    python, finished = folder / "bin" / "python", folder / "finished"
    CACHE.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{folder}.lock"):
        if not finished.exists():
            shutil.rmtree(folder, ignore_errors=True)
            base = Path(sys.base_prefix, "bin", "python3")
            subprocess.run(["uv", "venv", "--quiet", "--python", base, folder], check=True)
            install = ["uv", "pip", "install", "--quiet", "--compile-bytecode", "--python", python]
            subprocess.run([*install, *packages], check=True)
            finished.touch()
    return python


@pytest.fixture(scope="session")
def new_pair() -> Path:
    return python_of("new")


@pytest.fixture(scope="session")
def old_pair() -> Path:
    return python_of("old")
