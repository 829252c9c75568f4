"""The real agent CLIs, at the versions in conf/pins/pinned.yaml, installed from npm once for each set of versions.

`prefix()` is a folder with bin/claude, bin/codex, bin/gemini, bin/opencode and bin/node, in the user's cache: 1.4 GB, a
minute when it is made anew.
"""

from __future__ import annotations

import functools
import hashlib
import os
import platform
import shutil
import subprocess
from pathlib import Path

import yaml
from filelock import FileLock

from ptb_runner.paths import CONF
from ptb_runner.render import NPM

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ptb-tests"
PINS = yaml.safe_load((CONF / "pins" / "pinned.yaml").read_text())
_MACHINES = {"x86_64": "x64", "aarch64": "arm64"}


def _wanted() -> list[str]:
    """npm's names of the CLIs and of Node, with their versions."""
    node = PINS["node_image"].removeprefix("node:").partition("-")[0]
    clis = [f"{NPM[name]}@{version}" for name, version in PINS["clis"].items()]
    return [*clis, f"node-linux-{_MACHINES[platform.machine()]}@{node}"]


@functools.cache
def prefix() -> Path:
    """The folder, made if it is not there."""
    wanted = _wanted()
    folder = CACHE / f"clis-{hashlib.sha256(' '.join(wanted).encode()).hexdigest()[:8]}"
    CACHE.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{folder}.lock"):
        if not folder.exists():
            new = folder.with_suffix(".new")
            shutil.rmtree(new, ignore_errors=True)
            command = ["npm", "install", "--global", "--prefix", str(new), "--no-audit", "--no-fund", *wanted]
            done = subprocess.run(command, capture_output=True, text=True, timeout=280)
            assert done.returncode == 0, done.stderr
            new.rename(folder)
    return folder
