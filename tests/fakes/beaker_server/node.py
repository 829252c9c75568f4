"""The machine that a job finds itself on: this one, in namespaces of its own, written to through an overlay.

It is as awkward as the real thing: root is so in a user namespace only, and without CAP_NET_ADMIN; /proc/sys is
read-only, so that no fresh /proc may be mounted; there is no systemd; the job's command is process 1. podman has a
storage of its own in it, below which the images of this machine can be seen.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

_STORAGE = """\
[storage]
driver="overlay"
graphroot="/var/lib/containers/storage"
runroot="/run/containers/storage"
[storage.options]
additionalimagestores=["/var/lib/host-images"]
"""
_HOST_IMAGES = Path("/var/lib/containers/storage")
_NODES = ("null", "zero", "full", "random", "urandom", "tty", "fuse")
_IDS = 65536
_IMAGE_VARIABLES = ("UV_", "PIP_", "SSL_", "PATH")  # what an image for this network would have
# Installing and compiling the same packages for every job would take most of the time.
COMPILED = "/var/cache/compiled"
_INSTALLED = "opt/ptb-runner"  # thousands of folders, whose removal from a disk takes longer than the job
_QUICK = {"UV_LINK_MODE": "symlink", "PYTHONPYCACHEPREFIX": COMPILED}


@dataclass
class Node:
    """One job's machine, with its files below `folder`: what the job writes is in upper/."""

    folder: Path
    binds: list[tuple[Path, str, bool]] = field(default_factory=list)  # folder here, there, read-only
    base: Path = Path("/")  # whose files they are

    def start(self, command: list[str], env: dict[str, str]) -> subprocess.Popen[bytes]:
        """Begin to run a command as process 1; its stdout and stderr come through one pipe."""
        for name in ("root", "upper/etc/containers", "work", "containers"):
            (self.folder / name).mkdir(parents=True)
        if _HOST_IMAGES.is_dir():
            (self.folder / "upper/etc/containers/storage.conf").write_text(_STORAGE)
        script = "\n".join(["set -e", *self._mounts(), *self._enter(), f"exec {shlex.join(_restricted(command))}"])
        image = {name: value for name, value in os.environ.items() if name.startswith(_IMAGE_VARIABLES)}
        process = subprocess.Popen(
            ["unshare", "--mount", "--pid", "--ipc", "--fork", "--kill-child", "bash", "-c", script],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={"HOME": "/root", "LANG": "C.UTF-8", **image, **_QUICK, **env},
            cwd="/",
            start_new_session=True,
        )
        threading.Thread(target=_give_ids, args=(process,), daemon=True).start()
        return process

    def _mounts(self) -> Iterator[str]:
        root = shlex.quote(str(self.folder / "root"))
        layers = f"lowerdir={self.base},upperdir={self.folder / 'upper'},workdir={self.folder / 'work'}"
        yield f"mount -t overlay overlay -o {shlex.quote(layers)} {root}"
        yield f"cd {root}"
        yield "mount -t proc proc proc; mount --bind proc/sys proc/sys; mount -o remount,bind,ro proc/sys"
        yield "mount --rbind /sys sys; ! mountpoint -q sys/fs/cgroup/unified || umount sys/fs/cgroup/unified"
        yield "for one in run dev; do mount -t tmpfs -o mode=755 tmpfs $one; done; mkdir run/lock dev/pts dev/shm"
        yield f"for one in {' '.join(_NODES)}; do touch dev/$one; mount --bind /dev/$one dev/$one; done"
        yield "mount -t devpts -o newinstance,ptmxmode=0666,mode=620 devpts dev/pts; ln -s pts/ptmx dev/ptmx"
        yield "mount -t tmpfs tmpfs dev/shm; ln -s /proc/self/fd dev/fd"
        yield f"mkdir -p {_INSTALLED}; mount -t tmpfs tmpfs {_INSTALLED}"
        containers = shlex.quote(str(self.folder / "containers"))
        yield f"mkdir -p var/lib/containers var/lib/host-images; mount --bind {containers} var/lib/containers"
        if _HOST_IMAGES.is_dir():
            yield f"mount --bind -o ro {_HOST_IMAGES} var/lib/host-images"
        for source, target, read_only in [*self.binds, *self._python()]:
            here, there = shlex.quote(str(source)), shlex.quote(target.lstrip("/"))
            yield f"mkdir -p {there}; mount --bind {here} {there}"
            if read_only:
                yield f"mount -o remount,bind,ro {there}"

    def _python(self) -> list[tuple[Path, str, bool]]:
        """The program's Python, which uv would download where a base has an older one: here that cannot be done."""
        return [] if self.base == Path("/") else [(Path(sys.base_prefix), sys.base_prefix, True)]

    def _enter(self) -> Iterator[str]:
        yield "mkdir -p .old; pivot_root . .old; umount -l /.old; cd /"


def _restricted(command: list[str]) -> list[str]:
    """The command in a user namespace, once ids have been given to it from outside."""
    wait = "until read -r ids < /proc/self/uid_map; do sleep 0.01; done"
    drop = ["setpriv", "--bounding-set", "-net_admin", "--inh-caps", "-net_admin", *command]
    return ["unshare", "--user", "--mount", "bash", "-c", f"{wait}; exec {shlex.join(drop)}"]


def _give_ids(process: subprocess.Popen[bytes]) -> None:
    """All ids mean the same in a job's user namespace, as soon as it has one."""
    here = os.readlink("/proc/self/ns/user")
    while process.poll() is None:
        with contextlib.suppress(OSError):
            first = first_process(process.pid)
            if first and os.readlink(f"/proc/{first}/ns/user") != here:
                for name in ("gid_map", "uid_map"):
                    Path(f"/proc/{first}/{name}").write_text(f"0 0 {_IDS}\n")
                return
        time.sleep(0.01)


def first_process(unshare: int) -> int | None:
    """The number, here, of the process that is 1 in the namespace that `unshare` made; None: it is gone."""
    try:
        children = Path(f"/proc/{unshare}/task/{unshare}/children").read_text().split()
    except OSError:
        return None
    return int(children[0]) if children else None
