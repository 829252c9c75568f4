"""What a test holds of the fake Beaker: it runs in a process of its own, so that the client meets a real server."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.fakes import separate


@dataclass
class BeakerServer:
    """A server that runs; `env` is what makes the client use it."""

    process: subprocess.Popen[str]
    rpc_address: str
    url: str
    folder: Path

    @classmethod
    def start(cls, folder: Path, *arguments: str) -> BeakerServer:
        """Start one with its files below `folder`, and wait until it answers."""
        process, (rpc_address, url) = separate.start("tests.fakes.beaker_server", folder / "beaker", *arguments)
        return cls(process, rpc_address, url, folder / "beaker")

    @property
    def env(self) -> dict[str, str]:
        return {
            "BEAKER_CONFIG": str(self.folder / "config.yml"),
            "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH": str(self.folder / "roots.pem"),
        }

    def stop(self) -> None:
        separate.stop(self.process)

    # --- Orders ---------------------------------------------------------------------------------------

    def fail(self, call: str, **how: Any) -> None:
        """Have calls fail: the fields of faults.Fault; web.py has the names of calls by HTTP."""
        self._order("faults", {"rpc": call, **how})

    def mend(self) -> None:
        """No faults any more, jobs run their own commands and do not wait, logs do not break."""
        self._order("mend")

    def secret(self, name: str, value: str, workspace: str = "ai2/demo") -> None:
        self._order("secret", {"name": name, "value": value, "workspace": workspace})

    def run_instead(self, *command: str) -> None:
        """What jobs that begin from now on run in place of their own commands."""
        self._order("set", {"command": list(command)})

    def image(self, name: str, folder: Path) -> None:
        """The files of a Docker image; those of others are this machine's."""
        self._order("set", {"images": {name: str(folder)}})

    def hold(self, reason: str) -> None:
        """Keep jobs in the queue, with what the scheduler says about it."""
        self._order("set", {"held": reason})

    def release(self) -> None:
        self._order("set", {"held": None})

    def break_logs(self, after: int, replay: int = 0) -> None:
        """End log streams after some new lines; one that is taken up again repeats the last `replay` lines first."""
        self._order("set", {"break_after": after, "replay": replay})

    def preempt(self, job_id: str) -> None:
        """SIGTERM, and after --stop-sec SIGKILL; another job follows if the spec allows it."""
        self._order("preempt", job_id)

    def kill(self, job_id: str) -> None:
        """The same, without a warning."""
        self._order("kill", job_id)

    # --- What became of it ----------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        return json.loads(self._send("GET", "/fake/state"))

    def experiments(self) -> list[dict[str, Any]]:
        return self.state()["experiments"]

    def jobs(self, experiment: str | None = None) -> list[dict[str, Any]]:
        """All jobs (of an experiment), oldest first."""
        return [one for one in self.state()["jobs"] if experiment in (None, one["experiment"])]

    def datasets(self) -> dict[str, Path]:
        """The folder of each dataset, by name."""
        return {one["name"]: Path(one["folder"]) for one in self.state()["datasets"]}

    def weka(self, bucket: str) -> Path:
        """The folder that jobs find as this bucket."""
        return self.folder / "weka" / bucket

    def calls(self, name: str) -> int:
        return self.state()["calls"].get(name, 0)

    def wait_for(self, found: Callable[[list[dict[str, Any]]], Any], timeout_sec: float = 60) -> list[dict[str, Any]]:
        """Wait until the jobs are so; returns them."""
        deadline = time.monotonic() + timeout_sec
        while not found(jobs := self.jobs()):
            assert time.monotonic() < deadline, f"not within {timeout_sec} s: {jobs}"
            time.sleep(0.05)
        return jobs

    def _order(self, name: str, content: Any = None) -> None:
        self._send("POST", f"/fake/{name}", content)

    def _send(self, method: str, path: str, content: Any = None) -> bytes:
        return separate.order(method, f"{self.url}{path}", content)
