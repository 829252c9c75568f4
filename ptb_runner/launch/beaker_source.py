"""A commit for jobs to clone (launcher.code=git): it must be what runs here, and where jobs find it."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from pathlib import Path

from ptb_runner.config import BeakerLauncherConfig, CodeFrom, Config
from ptb_runner.explain import UsageError
from ptb_runner.launch import frozen
from ptb_runner.launch.beaker_spec import Source
from ptb_runner.paths import CONF, PACKAGE, TEMPLATES

_OR_WHEEL = "or type launcher.code=wheel, which takes the program as it is here"
_GIT_SEC = 60.0


def source(launcher: BeakerLauncherConfig, cells: list[Config]) -> Source | None:
    """The commit that jobs clone; None: they get a wheel.

    Raises UsageError when the checkout is not what the commit holds, or jobs would not find the commit.
    """
    if launcher.code is not CodeFrom.git:
        return None
    root = PACKAGE.parent
    if not (root / ".git").exists():
        raise UsageError(f"launcher.code=git: the program does not run from a git checkout\n  {_OR_WHEEL}")
    _refuse_changes(root, cells)
    commit = _git(root, "rev-parse", "HEAD") or ""
    url = launcher.git_url or _over_https(_git(root, "remote", "get-url", "origin"))
    if not url:
        raise UsageError("launcher.git_url: needs a value, the checkout has no origin\n  type launcher.git_url=URL")
    _refuse_unpushed(url, commit)
    return Source(url, commit)


def _refuse_changes(root: Path, cells: list[Config]) -> None:
    """A job would run without what is not committed; files that git does not know matter where programs are."""
    own = [path.relative_to(root).as_posix() for path in (PACKAGE, CONF, TEMPLATES)]
    agents = [path.resolve() for path in frozen.agents(cells)]
    if outside := next((path for path in agents if not path.is_relative_to(root)), None):
        raise UsageError(f"launcher.code=git: {outside} is not in the checkout {root}\n  move it there, {_OR_WHEEL}")
    own += [path.relative_to(root).as_posix() for path in agents]
    changed = _git(root, "status", "--porcelain", "--untracked-files=no") or ""
    new = _git(root, "ls-files", "--others", "--exclude-standard", "--", *own) or ""
    if names := [*(line[2:].strip() for line in changed.splitlines()), *new.splitlines()]:
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        raise UsageError(
            f"launcher.code=git: what is not committed would not run: {names[0]}{more}\n  commit and push, {_OR_WHEEL}"
        )


def _refuse_unpushed(url: str, commit: str) -> None:
    """Fetch the commit as a job does: remote branches as this checkout remembers them may be out of date."""
    with tempfile.TemporaryDirectory(prefix="ptb-git-") as folder:
        _git(Path(folder), "init", "--quiet")
        command = ["git", "-C", folder, "fetch", "--quiet", "--depth=1", "--filter=tree:0", url, commit]
        quiet = {**os.environ, "GIT_TERMINAL_PROMPT": "0", "GIT_SSH_COMMAND": "ssh -oBatchMode=yes", "LC_ALL": "C"}
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=_GIT_SEC, env=quiet)
        except subprocess.TimeoutExpired:
            raise UsageError(f"launcher.git_url={url}: does not answer within {_GIT_SEC:g} s\n  {_OR_WHEEL}") from None
    if not done.returncode:
        return
    if re.search(r"not our ref|remote ref|unadvertised object", done.stderr):
        raise UsageError(
            f"launcher.code=git: commit {commit[:12]} is not at {url}, where jobs would look for it\n"
            f"  git push, {_OR_WHEEL}"
        )
    said = (done.stderr.strip().splitlines() or ["git says nothing"])[-1][:200]
    raise UsageError(f"launcher.git_url={url}: cannot be read without a password: {said}\n  {_OR_WHEEL}")


def _over_https(url: str | None) -> str | None:
    """A job has no SSH key."""
    found = re.fullmatch(r"(?:ssh://)?git@([^:/]+)(?::\d+)?[:/](.+)", url or "")
    return f"https://{found[1]}/{found[2]}" if found else url


def _git(folder: Path, *arguments: str) -> str | None:
    command = ["git", "-C", str(folder), *arguments]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=_GIT_SEC, check=True).stdout.rstrip()
    except (OSError, subprocess.SubprocessError):
        return None
