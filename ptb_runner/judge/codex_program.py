"""The Codex CLI for judges: one pinned version in the user's cache, or one that the configuration names.

npm's package is a launcher for a program that needs nothing else; that program alone goes into a judge's sandbox.
"""

from __future__ import annotations

import functools
import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import yaml

from ptb_runner.config import CodexConfig
from ptb_runner.explain import UsageError
from ptb_runner.paths import CONF, cache

PACKAGE = "@openai/codex"
INSTALL_SEC = 900


@dataclass(frozen=True)
class Program:
    """A codex: the folder with its bin/codex and what that needs, and the version it says it is."""

    folder: Path
    version: str


def wanted(own: CodexConfig) -> str:
    """The version that judges are to be."""
    return own.version or yaml.safe_load((CONF / "pins" / "pinned.yaml").read_text())["clis"]["codex"]


def find(own: CodexConfig) -> Program:
    """The codex to use. Raises UsageError, with what to type, when it is not there or of another version."""
    if own.path:
        named = Path(own.path).expanduser()
        if not named.is_file():
            raise UsageError(f"judge.codex.path={own.path}: no such file")
        found, where = _in_package(named.resolve()), f"judge.codex.path={own.path}"
    else:
        found, where = _in_package(_cached(own)), f"codex {wanted(own)}"
    if found is None:
        lacks = "" if shutil.which("npm") else " (that needs npm, which is not here: install Node.js)"
        raise UsageError(f"{where}: is not installed for judges\n  ptb cache codex{lacks}, or judge.codex.path=FILE")
    version = _version(found / "bin" / "codex")
    if version != wanted(own):
        raise UsageError(f"{where}: is codex {version}, not {wanted(own)}\n  judge.codex.version={version} takes it")
    return Program(found, version)


def install(own: CodexConfig, tell: Callable[[str], None]) -> Program:
    """Install the wanted version from npm into the user's cache, if it is not there. Raises UsageError."""
    from filelock import FileLock

    folder = _cached(own)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{folder}.lock"):
        if _in_package(folder) is None:
            if not (npm := shutil.which("npm")):
                raise UsageError("npm: is not here\n  install Node.js, or name a codex: judge.codex.path=FILE")
            tell(f"installing {PACKAGE} {wanted(own)} to {folder}")
            new = folder.with_name(f".{folder.name}.new")
            shutil.rmtree(new, ignore_errors=True)
            command = [npm, "install", "--prefix", str(new), "--no-audit", "--no-fund", f"{PACKAGE}@{wanted(own)}"]
            done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_SEC)
            if done.returncode != 0 or _in_package(new) is None:
                said = (done.stderr.strip().splitlines() or ["it left no program"])[-1]
                raise UsageError(f"npm could not install {PACKAGE}@{wanted(own)}: {said[:300]}")
            shutil.rmtree(folder, ignore_errors=True)
            new.rename(folder)
    return find(own)


def _cached(own: CodexConfig) -> Path:
    return cache() / "codex" / wanted(own)


def _in_package(place: Path) -> Path | None:
    """The folder of the program itself: the one that a named program lies in, or that of an installed package."""
    if place.is_file() and place.parent.name == "bin" and place.name == "codex":
        return place.parent.parent
    top = place.parent.parent if place.is_file() else place  # bin/codex.js, npm's launcher
    return next((path.parents[1] for path in sorted(top.glob("**/vendor/*/bin/codex"))), None)


@functools.cache
def _version(program: Path) -> str:
    try:
        said = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=60, env={}).stdout
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UsageError(f"{program}: does not run: {error}") from None
    found = re.search(r"\d+\.\d+\.\d+\S*", said)
    if not found:
        raise UsageError(f"{program}: says no version, so it is no codex")
    return found[0]
