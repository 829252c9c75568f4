"""What podman needs of this machine, what of it is missing, and what to do about that."""

import contextlib
import functools
import json
import os
import re
import shutil
import subprocess
import tempfile
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ptb_runner.sandbox import podman_nested
from ptb_runner.sandbox.podman_cli import Podman

OLDEST = (4, 0)
NETAVARK_FOR_5 = (1, 6)
OLDEST_COMPOSE = (1, 6)
LITTLE_DISK_GB = 2.0
INSTALL = "apt-get install podman crun uidmap slirp4netns fuse-overlayfs, or your system's like"
HYBRID = (
    "cgroups v1 and v2 are mounted side by side, which crun refuses: start this program with\n"
    "  unshare -m sh -c 'umount /sys/fs/cgroup/unified; exec \"$@\"' sh COMMAND (nothing outside it changes)"
)


@dataclass(frozen=True)
class Needs:
    """What is asked of podman."""

    nested: bool = False
    own_network: bool = True
    gpus: bool = False
    logins: tuple[str, ...] = ()
    helper_dir: str | None = None
    images: tuple[str, ...] = ()


@functools.cache
def version(program: str = "podman") -> tuple[int, ...]:
    """The first number that a program says with --version; () when there is none."""
    try:
        said = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=30).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ()
    found = re.search(r"\d+(\.\d+)+", said)
    return tuple(map(int, found.group().split("."))) if found else ()


def problems(podman: Podman, needs: Needs) -> list[str]:
    """Why no container can be started here, and what to do about it; nothing is created."""
    if not shutil.which("podman"):
        return [f"podman is not installed\n  {INSTALL}"]
    found = version()
    if not found or found < OLDEST:
        words = ".".join(map(str, found)) or "nothing readable"
        return [f"podman --version says {words}, and {'.'.join(map(str, OLDEST))} is needed\n  {INSTALL}"]
    if needs.nested and not shutil.which("crun"):
        return [f"crun is not installed, and a restricted machine needs it\n  {INSTALL}"]
    try:
        done = podman.now("info", "--format", "json")
    except (OSError, subprocess.TimeoutExpired) as problem:
        return [f"podman does not answer: {problem}\n  type `podman info`"]
    if done.returncode:
        return [
            f"`podman info` fails: {done.stderr.strip()[-500:]}\n  mend what it says, then type `podman info` again"
        ]
    return [
        *_of_info(json.loads(done.stdout), found, needs),
        *_of_files(needs),
        *_of_logins(podman, needs),
        *_of_images(podman, needs),
    ]


def _of_info(info: dict[str, Any], found: tuple[int, ...], needs: Needs) -> Iterator[str]:
    host, store = info["host"], info["store"]
    if host.get("serviceIsRemote"):
        yield "podman works on another machine (a VM or a remote service)\n  run this program on that machine"
    runtime = host.get("ociRuntime", {}).get("name", "")
    if runtime == "crun" and _hybrid_cgroups():
        yield HYBRID
    security = host.get("security", {})
    mapped = sum(int(entry.get("size", 0)) for entry in (host.get("idMappings") or {}).get("uidmap") or [])
    if security.get("rootless") and mapped < 65536:
        yield (
            f"this user has {max(0, mapped - 1)} subordinate ids, and images need 65536\n"
            f"  usermod --add-subuids 100000-165535 --add-subgids 100000-165535 {_user()}; podman system migrate"
        )
    free = shutil.disk_usage(_existing(Path(store["graphRoot"]))).free / 1e9
    if free < LITTLE_DISK_GB:
        yield (
            f"{store['graphRoot']} has {free:.1f} GB free for images, and {LITTLE_DISK_GB:g} are needed\n"
            "  make room, for example with `ptb clean --images backend=podman` or `podman image prune`"
        )
    if needs.own_network and not needs.nested:
        yield from _of_network(host, found, bool(security.get("rootless")), needs.helper_dir)


def _of_network(host: dict[str, Any], found: tuple[int, ...], rootless: bool, helper_dir: str | None) -> Iterator[str]:
    if rootless:
        if not Path("/dev/net/tun").exists():
            yield (
                "/dev/net/tun is missing, through which rootless containers reach the network\n  as root: mkdir -p "
                "/dev/net; mknod /dev/net/tun c 10 200; chmod 666 /dev/net/tun; or type backend.network=host"
            )
        return
    program = f"{helper_dir}/netavark" if helper_dir else (host.get("networkBackendInfo") or {}).get("path")
    if found >= (5,) and program and (netavark := version(program)) and netavark < NETAVARK_FOR_5:
        words = ".".join(map(str, netavark))
        yield (
            f"netavark {words} is too old for podman {found[0]}: no network can be made\n"
            "  put netavark 1.6 or newer into a folder and type backend.helper_dir=FOLDER, or backend.network=host"
        )


def _of_files(needs: Needs) -> Iterator[str]:
    if needs.gpus and not any(any(Path(folder).glob("*")) for folder in ("/etc/cdi", "/var/run/cdi")):
        yield "no GPU is described for containers\n  as root: nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml"


def _of_logins(podman: Podman, needs: Needs) -> Iterator[str]:
    for registry in needs.logins:
        if podman.now("login", "--get-login", registry).returncode:
            yield f"podman is not logged in to {registry} (`docker login` does not serve it)\n  podman login {registry}"


def _of_images(podman: Podman, needs: Needs) -> Iterator[str]:
    """Images of this machine only, which no registry has: whether the others can be pulled is seen when they are."""
    for image in needs.images:
        if image.startswith("localhost/") and podman.now("image", "exists", image).returncode:
            yield f"image {image} is not here, and no registry has it\n  `podman images` lists what is here"


def _hybrid_cgroups() -> bool:
    return any(line.split()[1] == "/sys/fs/cgroup/unified" for line in Path("/proc/mounts").read_text().splitlines())


def _existing(path: Path) -> Path:
    return next(folder for folder in [path, *path.parents] if folder.exists())


def _user() -> str:
    return os.environ.get("USER") or str(os.geteuid())


def compose_reasons(task_dir: Path, *, here: bool = True) -> list[str]:
    """Why a compose task cannot run, one line for each reason; most of it Harbor looks at itself.

    `here`: on this machine, whose podman-compose is looked at, too.
    """
    task = tomllib.loads((task_dir / "task.toml").read_text())
    steps = [task, *task.get("steps", [])]
    parts = [task.get("environment", {}), *(step.get(role, {}) for step in steps for role in ("agent", "verifier"))]
    parts += [step.get("verifier", {}).get("environment", {}) for step in steps]
    reasons = []
    if any(part.get("network_mode") == "allowlist" for part in parts):
        # Harbor's filter is an image built from a registry's, and needs networks: neither can be counted on.
        reasons.append("network_mode 'allowlist': not enforced for compose tasks")
    if here and version("podman-compose") < OLDEST_COMPOSE and not shutil.which("docker-compose"):
        needed = ".".join(map(str, OLDEST_COMPOSE))
        reasons.append(f"compose tasks need podman-compose {needed} first on PATH: pip install 'ptb-runner[podman]'")
    return reasons


def describe(podman: Podman) -> str:
    """What is there, in a line."""
    host = json.loads(podman.now("info", "--format", "json").stdout)["host"]
    kind = "rootless" if host["security"]["rootless"] else "rootful"
    return (
        f"podman {'.'.join(map(str, version()))}, {kind}, {host['ociRuntime']['name']}, "
        f"cgroups {host['cgroupVersion']}, network {host.get('networkBackend', 'unknown')}"
    )


def storage(podman: Podman) -> str:
    """Where images are, by which driver, and how much room is left, in a line."""
    store = json.loads(podman.now("info", "--format", "json").stdout)["store"]
    free = shutil.disk_usage(_existing(Path(store["graphRoot"]))).free / 1e9
    slow = "; vfs copies every image whole: install fuse-overlayfs" if store["graphDriverName"] == "vfs" else ""
    return f"{store['graphDriverName']} in {store['graphRoot']}, {free:.1f} GB free{slow}"


def trial_run(
    podman: Podman, image: str | None, *, network: str = "none", pull_sec: float = 0, run_sec: int = 0
) -> tuple[bool, str]:
    """Start a container that writes a file, read it and delete it; whether that failed, and what was found.

    It stays for `run_sec`; an image that is not here is pulled if that may take `pull_sec`.
    """
    image = image or next(iter(podman.now("images", "--quiet").stdout.split()), None)
    if not image:
        return True, "there is no image to try it with: type backend.image=NAME"
    with tempfile.TemporaryDirectory(prefix="ptb-doctor-") as folder:
        write = ("sh", "-c", f"sleep {run_sec}; echo ok > /ptb/file")
        # As root, whoever the image runs as: rootless that is us, and our folder is not another's to write to.
        pull = "missing" if pull_sec else "never"
        own = podman_nested.isolating() if network == "none" else []
        options = ("--rm", "--pull", pull, "--network", network, "--security-opt", "label=disable", "--user", "0:0")
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            place = ("--volume", f"{folder}:/ptb", "--entrypoint", "")
            done = podman.now("run", *options, *own, *place, image, *write, timeout_sec=60 + pull_sec + run_sec)
            file = Path(folder, "file")
            if done.returncode:
                return True, f"a container of {image} does not run: {done.stderr.strip()[-500:]}"
            if file.is_file() and file.read_text() == "ok\n":
                file.unlink()
                return False, f"a container of {image} started and wrote a file, which could be read and deleted"
        return True, f"a container of {image} wrote no file that can be read"
