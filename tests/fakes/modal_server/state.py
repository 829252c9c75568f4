"""Everything that the account has, and what all calls share."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from grpclib import GRPCError, Status

from tests.fakes.modal_server.faults import Faults

if TYPE_CHECKING:
    from tests.fakes.modal_server.functions import Call, Function
    from tests.fakes.modal_server.images import Image
    from tests.fakes.modal_server.sandboxes import Sandbox
    from tests.fakes.modal_server.volumes import Volume

TOKEN_ID, TOKEN_SECRET = "ak-fake", "as-fake"
_LETTERS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


@dataclass
class State:
    """The account; the addresses are known once both ports are open."""

    folder: Path
    url: str = ""
    blob_url: str = ""
    commit_sec: float = 5.0  # seconds between the background commits of volumes
    gpu_names: dict[str, str] = field(default_factory=dict)  # what nvidia-smi shows, by the type that was asked for
    faults: Faults = field(default_factory=Faults)
    apps: dict[str, str] = field(default_factory=dict)
    secrets: dict[str, dict[str, str]] = field(default_factory=dict)
    secret_names: dict[str, str] = field(default_factory=dict)
    mounts: dict[str, dict[str, tuple[str, int]]] = field(default_factory=dict)  # file -> (sha256, mode)
    blobs: dict[str, bytes] = field(default_factory=dict)  # by sha256 or by the id of an upload
    images: dict[str, Image] = field(default_factory=dict)
    functions: dict[str, Function] = field(default_factory=dict)
    function_calls: dict[str, Call] = field(default_factory=dict)
    volumes: dict[str, Volume] = field(default_factory=dict)
    sandboxes: dict[str, Sandbox] = field(default_factory=dict)
    calls: Counter[str] = field(default_factory=Counter)
    answers: dict[str, asyncio.Future[Any]] = field(default_factory=dict)  # by idempotency key

    def secret_env(self, sources: Iterable[Any]) -> dict[str, str]:
        """The variables of a call's secrets, which come by id or written out."""
        env: dict[str, str] = {}
        for source in sources:
            named = source.WhichOneof("source") != "env"
            env |= self.secrets[source.secret_id] if named else dict(source.env.contents)
        return env

    def sandbox(self, sandbox_id: str) -> Sandbox:
        return self.sandboxes.get(sandbox_id) or fail(Status.NOT_FOUND, f"Sandbox {sandbox_id} not found")

    def sandbox_of(self, task_id: str) -> Sandbox:
        found = [one for one in self.sandboxes.values() if one.task_id == task_id]
        return found[0] if found else fail(Status.NOT_FOUND, f"task {task_id} not found")

    def volume(self, volume_id: str) -> Volume:
        return self.volumes.get(volume_id) or fail(Status.NOT_FOUND, f"Volume {volume_id} not found")


def fail(status: Status, message: str) -> NoReturn:
    """End a call with an error."""
    raise GRPCError(status, message)


def new_id(prefix: str, length: int = 22) -> str:
    return prefix + "-" + "".join(_LETTERS[byte % 62] for byte in os.urandom(length))


def jwt(lifetime_sec: float = 3600) -> str:
    """A token that the client accepts: it reads the time of expiry and does not check the signature."""

    def part(content: Mapping[str, Any]) -> str:
        return base64.urlsafe_b64encode(json.dumps(content).encode()).rstrip(b"=").decode()

    return f"{part({'alg': 'none'})}.{part({'exp': time.time() + lifetime_sec})}.x"
