"""Which credentials the Modal client would use, found out offline and without importing it.

The client resolves each setting on its own: a variable MODAL_..., else the active profile of ~/.modal.toml (or of
MODAL_CONFIG_PATH). A variable that is set but empty counts as set.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MEND = "type `modal token new`, or export MODAL_TOKEN_ID=... and MODAL_TOKEN_SECRET=..."
_OAUTH = ("oauth_refresh_token", "oauth_client_id", "oauth_client_secret", "oauth_jwt_key")


@dataclass(frozen=True)
class Credentials:
    """What was found: `problem` says what is wrong and how to mend it, and is empty when there are usable ones."""

    source: str = ""
    problem: str = ""


def find(environ: Mapping[str, str] = os.environ) -> Credentials:
    """The credentials that the client would use; never their values."""
    if environ.get("MODAL_IS_REMOTE") == "1":
        return Credentials(source="the container that this runs in")  # the client uses no others there
    path = Path(environ.get("MODAL_CONFIG_PATH") or Path.home() / ".modal.toml")
    try:
        profiles = tomllib.loads(path.read_text()) if path.exists() else {}
    except (OSError, ValueError) as error:
        return Credentials(problem=f"{path}: cannot be read: {error}\n  mend the file, or {MEND}")
    if not all(isinstance(profile, dict) for profile in profiles.values()):
        return Credentials(problem=f"{path}: holds something that is no profile\n  it has one [table] for each profile")
    active = [name for name, profile in profiles.items() if profile.get("active") is True]
    if len(active) > 1:
        return Credentials(problem=f"{path}: several profiles are active: {', '.join(active)}\n  {_choose(profiles)}")
    name = environ.get("MODAL_PROFILE") or (active[0] if active else "default")
    has_token = bool(environ.get("MODAL_TOKEN_ID") and environ.get("MODAL_TOKEN_SECRET"))
    if not has_token and profiles and name not in profiles:
        what = f"has no profile {name!r}" if environ.get("MODAL_PROFILE") else "no profile is active"
        return Credentials(problem=f"{path}: {what}\n  {_choose(profiles)}")
    return _of_profile(environ, profiles.get(name, {}), f"profile {name} of {path}")


def _choose(profiles: dict[str, Any]) -> str:
    return f"type `modal profile activate NAME`, one of: {', '.join(profiles)}"


def _of_profile(environ: Mapping[str, str], profile: dict[str, Any], where: str) -> Credentials:
    def get(key: str) -> Any:
        return environ.get(f"MODAL_{key.upper()}", profile.get(key))

    token = {key: get(key) for key in ("token_id", "token_secret")}
    oauth = {key: get(key) for key in _OAUTH}
    if any(oauth.values()):
        if any(token.values()):
            return Credentials(problem="Modal: a token and OAuth credentials are both set\n  unset one kind")
        complete = oauth["oauth_refresh_token"] and oauth["oauth_client_id"]
        if not complete or bool(oauth["oauth_client_secret"]) == bool(oauth["oauth_jwt_key"]):
            return Credentials(
                problem="Modal: OAuth credentials are incomplete\n  they are MODAL_OAUTH_REFRESH_TOKEN, "
                "MODAL_OAUTH_CLIENT_ID, and one of MODAL_OAUTH_CLIENT_SECRET and MODAL_OAUTH_JWT_KEY"
            )
        return Credentials(source="OAuth credentials")
    if missing := [f"MODAL_{key.upper()}" for key, value in token.items() if not value]:
        return Credentials(problem=f"Modal: no {' and no '.join(missing)}, neither set nor in {where}\n  {MEND}")
    return Credentials(source="the environment" if "MODAL_TOKEN_ID" in environ else where)
