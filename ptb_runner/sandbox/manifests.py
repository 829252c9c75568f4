"""Asking a registry for an image's manifest, as podman would before it pulls: without pulling, and without podman.

podman's own command for that knows only images for several machines in the versions that distributions have.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import httpx

_KINDS = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
    "application/vnd.docker.distribution.manifest.v2+json",
)
_ANSWER_SEC = 30.0


def fault(place: str, image: str) -> str | None:
    """Why a registry does not give the manifest of an image; None when it does.

    `place` is HOST[:PORT][/PATH], behind http:// if it has no TLS; `image` is the rest of the name, with tag or digest.
    """
    import httpx

    url, host = _address(place, image)
    try:
        with httpx.Client(timeout=_ANSWER_SEC, follow_redirects=True) as client:
            headers = {"Accept": ", ".join(_KINDS)}
            answer = client.get(url, headers=headers)
            if answer.status_code == httpx.codes.UNAUTHORIZED:
                answer = client.get(url, headers={**headers, "Authorization": _permission(client, answer, host)})
    except (httpx.HTTPError, KeyError, ValueError) as error:
        return str(error) or type(error).__name__
    if not answer.is_success:
        return f"HTTP {answer.status_code} {answer.reason_phrase}"
    return None if "mediaType" in answer.text or "schemaVersion" in answer.text else "what it answers is no manifest"


def _address(place: str, image: str) -> tuple[str, str]:
    scheme = "http" if place.startswith("http://") else "https"
    host, _, path = re.sub(r"^https?://", "", place).rstrip("/").partition("/")
    name, mark, reference = image.partition("@") if "@" in image else image.rpartition(":")
    if not mark or "/" in reference:
        name, reference = image, "latest"
    return f"{scheme}://{host}/v2/{path}{'/' if path else ''}{name}/manifests/{reference}", host


def _permission(client: httpx.Client, refused: httpx.Response, host: str) -> str:
    """The header for a second try: podman's login, or the token that a registry's own service gives for it."""
    kind, _, rest = refused.headers.get("WWW-Authenticate", "").partition(" ")
    login = _login(host)
    if kind.lower() != "bearer":
        if login is None:
            raise ValueError(f"podman is not logged in to {host}")
        return login
    asked = dict(re.findall(r'(\w+)="([^"]*)"', rest))
    answer = client.get(
        asked.pop("realm"), params=asked, headers={"Authorization": login} if login else {}
    ).raise_for_status()
    given = answer.json()
    return f"Bearer {given.get('token') or given['access_token']}"


def _login(host: str) -> str | None:
    """What podman's file of logins has for a host."""
    try:
        logins = json.loads(Path(os.environ["REGISTRY_AUTH_FILE"]).read_text())["auths"]
        return f"Basic {logins[host]['auth']}"
    except (KeyError, OSError):
        return None
