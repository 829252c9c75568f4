"""The file in which `codex login` keeps a subscription's tokens.

Codex renews tokens while it works, and an old refresh token is then worth nothing: what it wrote in the sandbox has to
come back. But the agent could write there, too. So only newer tokens of the same account come back, in the same form,
under a lock, in one step; anything else is left where it is.
"""

from __future__ import annotations

import json
import os
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from filelock import FileLock

MAX_BYTES = 64 * 1024
_TOKENS = ("id_token", "access_token", "refresh_token")


def path() -> Path:
    """Where the file is: CODEX_AUTH_JSON_PATH, or Codex's own place."""
    if named := os.environ.get("CODEX_AUTH_JSON_PATH"):
        return Path(named).expanduser()
    return Path(os.environ.get("CODEX_HOME") or Path.home() / ".codex") / "auth.json"


def problem(file: Path) -> str | None:
    """Why the file is no login; None when it is one."""
    if not file.is_file():
        return f"{file} does not exist"
    try:
        content = json.loads(file.read_text())
    except (OSError, ValueError) as error:
        return f"{file} cannot be read: {error}"
    return None if _tokens(content) else f"{file} holds no tokens of a subscription"


def secrets(file: Path) -> dict[str, str]:
    """The tokens in the file, by a name for each."""
    try:
        return {f"codex {name}": value for name, value in _tokens(json.loads(file.read_text())).items()}
    except (OSError, ValueError):
        return {}


def _tokens(content: Any) -> dict[str, str]:
    """The tokens of a login's content; {} when it is none."""
    tokens = content.get("tokens") if isinstance(content, dict) else None
    given = tokens if isinstance(tokens, dict) else {}
    values = {name: given[name] for name in _TOKENS if isinstance(given.get(name), str) and given[name]}
    return values if len(values) == len(_TOKENS) else {}


def bring_back(file: Path, renewed: Path) -> str:
    """Write a login that came out of a sandbox over the one in `file` if it is a renewal of it; says what was done."""
    with FileLock(f"{file}.lock", timeout=30):
        before = json.loads(file.read_text())
        if renewed.stat().st_size > MAX_BYTES:
            return "left alone: too large"
        try:
            after = json.loads(renewed.read_text())
        except ValueError:
            return "left alone: no JSON"
        if after == before:
            return "unchanged"
        if reason := _no_renewal(before, after):
            return f"left alone: {reason}"
        tokens = before["tokens"] | {name: after["tokens"][name] for name in _TOKENS}
        _replace(file, before | {"tokens": tokens, "last_refresh": after["last_refresh"]})
        return "renewed"


def _no_renewal(before: dict[str, Any], after: Any) -> str | None:
    if not _tokens(after):
        return "not the form of a login"
    if after["tokens"].get("account_id") != before["tokens"].get("account_id"):
        return "another account"
    try:
        old, new = (datetime.fromisoformat(one["last_refresh"]) for one in (before, after))
        if not old < new <= datetime.now(UTC) + timedelta(minutes=10):
            return "not newer"
    except (KeyError, TypeError, ValueError):
        return "no time of its renewal"
    return None


def _replace(file: Path, content: dict[str, Any]) -> None:
    target = file.resolve()  # a link stays a link
    descriptor, name = tempfile.mkstemp(dir=target.parent, prefix=".auth-")  # readable by its owner only
    try:
        with os.fdopen(descriptor, "w") as stream:
            json.dump(content, stream, indent=2)
            stream.flush()
            os.fsync(stream.fileno())
        Path(name).replace(target)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
