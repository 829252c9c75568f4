"""What a test holds of the fake Modal: it runs in a process of its own, so that the client meets a real server."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.fakes import separate
from tests.fakes.modal_server.state import TOKEN_ID, TOKEN_SECRET


@dataclass
class ModalServer:
    """A server that runs; `env` is what makes the client use it."""

    process: subprocess.Popen[str]
    url: str
    blob_url: str
    folder: Path

    @classmethod
    def start(cls, folder: Path, *arguments: str) -> ModalServer:
        """Start one with its files below `folder`, and wait until it answers."""
        process, (url, blob_url) = separate.start("tests.fakes.modal_server", folder / "modal", *arguments)
        return cls(process, url, blob_url, folder / "modal")

    @property
    def env(self) -> dict[str, str]:
        return {
            "MODAL_SERVER_URL": self.url,
            "MODAL_TOKEN_ID": TOKEN_ID,
            "MODAL_TOKEN_SECRET": TOKEN_SECRET,
            "MODAL_CONFIG_PATH": str(self.folder / "none.toml"),
        }

    def stop(self) -> None:
        separate.stop(self.process)

    def fail(self, rpc: str, **how: Any) -> None:
        """Have calls fail: the fields of faults.Fault."""
        self._send("POST", "/faults", {"rpc": rpc, **how})

    def mend(self) -> None:
        self._send("DELETE", "/faults")

    def secret(self, name: str, **variables: str) -> None:
        self._send("POST", f"/secrets/{name}", variables)

    def show_gpus(self, **names: str) -> None:
        """What nvidia-smi shows in sandboxes that asked for a type, such as {"H100!": "NVIDIA H100 80GB HBM3"}."""
        self._send("POST", "/gpus", names)

    def state(self) -> dict[str, Any]:
        return json.loads(self._send("GET", "/state"))

    def sandboxes(self, running: bool | None = True) -> list[dict[str, Any]]:
        return [one for one in self.state()["sandboxes"] if running is None or one["running"] == running]

    def volumes(self) -> dict[str, Path]:
        """The folder of each volume, by name."""
        return {one["name"]: Path(one["folder"]) for one in self.state()["volumes"]}

    def calls(self, rpc: str) -> int:
        return self.state()["calls"].get(rpc, 0)

    def _send(self, method: str, path: str, content: Any = None) -> bytes:
        return separate.order(method, f"{self.blob_url}{path}", content)
