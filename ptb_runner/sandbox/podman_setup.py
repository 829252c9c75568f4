"""Setting up a restricted machine for podman: what a person, or a cluster job, would otherwise do by hand before.

The device through which rootless containers reach the network, the folder that podman's network programs expect, our
configuration, and podman's service, which docker-compose and other clients of Docker's interface ask. What is there
is left as it is. Nothing in /etc or in the user's home changes.
"""

import http.client
import os
import shlex
import socket
import stat
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import override

from ptb_runner.sandbox import scratch
from ptb_runner.sandbox.podman_cli import Podman

TUN = (10, 200)
SERVICE_SEC = 15.0
SOCKETS = Path("/tmp")  # TMPDIR may be long, and a socket's path has at most 107 bytes

type Step = tuple[str, bool, str]  # what it is, whether it failed, and what was done or is to be done


@dataclass(frozen=True)
class Setup:
    """What was done, and the environment variables that hand it to programs."""

    steps: list[Step]
    exports: dict[str, str]
    service: subprocess.Popen[bytes] | None  # podman's, if it was started just now: it outlives this process

    @property
    def commands(self) -> str:
        """The exports, for a shell."""
        return "".join(f"export {name}={shlex.quote(value)}\n" for name, value in self.exports.items())


def set_up(podman: Podman, *, nested: bool, own_network: bool, root: Path = Path("/")) -> Setup:
    """Make what is missing and can be made; `podman` has the variables of our configuration."""
    steps, exports = [_device(root / "dev/net/tun", needed=own_network)], dict(podman.variables)
    service = None
    if nested:
        if os.geteuid() == 0:
            steps.append(_folder(root / "run/containers/networks/aardvark-dns"))
        conf = Path(podman.variables["CONTAINERS_CONF"])
        address = scratch.parent(SOCKETS) / conf.with_suffix(".sock").name  # another configuration, another service
        step, service = _service(podman, address)
        steps.append(step)
        exports |= {} if step[1] else {"DOCKER_HOST": f"unix://{address}"}
    steps += [("configuration", False, path) for path in podman.variables.values()]
    return Setup(steps, exports, service)


def _device(node: Path, *, needed: bool) -> Step:
    if node.is_char_device():
        return "device", False, f"{node} was there"
    try:
        node.parent.mkdir(parents=True, exist_ok=True)
        os.mknod(node, stat.S_IFCHR, os.makedev(*TUN))
        node.chmod(0o666)
    except OSError as problem:
        remedy = f"as root: mkdir -p {node.parent}; mknod {node} c {TUN[0]} {TUN[1]}; chmod 666 {node}"
        use = remedy if needed else "nothing needs it here: containers share the machine's network"
        return "device", needed, f"{node} is missing and cannot be made ({problem.strerror})\n  {use}"
    return "device", False, f"made {node}"


def _folder(folder: Path) -> Step:
    if folder.is_dir():
        return "folder", False, f"{folder} was there"
    try:
        folder.mkdir(parents=True)
    except OSError as problem:
        return "folder", True, f"{folder} cannot be made ({problem.strerror})\n  mkdir -p {folder}"
    return "folder", False, f"made {folder}"


def _service(podman: Podman, address: Path) -> tuple[Step, subprocess.Popen[bytes] | None]:
    """Start podman's service, unless one answers there already."""
    if _answers(address):
        return ("service", False, f"{address} answered"), None
    command = ["podman", "system", "service", "--time", "0", f"unix://{address}"]
    by_hand = shlex.join([*(f"{name}={value}" for name, value in podman.variables.items()), *command])
    log = address.with_suffix(".log")
    try:
        with log.open("wb") as said:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                start_new_session=True,
                env={**os.environ, **podman.variables},
            )
    except OSError as problem:
        return ("service", True, f"podman does not start ({problem.strerror})\n  {by_hand}"), None
    deadline = time.monotonic() + SERVICE_SEC
    while time.monotonic() < deadline and process.poll() is None:
        if _answers(address):
            return ("service", False, f"started at {address}; `kill {process.pid}` ends it"), process
        time.sleep(0.1)
    process.kill()
    return ("service", True, f"podman's service does not answer: {log.read_text().strip()[-500:]}\n  {by_hand}"), None


class _Connection(http.client.HTTPConnection):
    """HTTP over a Unix socket."""

    @override
    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self.host)


def _answers(address: Path) -> bool:
    connection = _Connection(str(address), timeout=5)
    try:
        connection.request("GET", "/_ping", headers={"Host": "podman"})
        return connection.getresponse().status == http.HTTPStatus.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
