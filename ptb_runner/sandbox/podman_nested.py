"""podman in a machine that forbids half of what it does by default: a container of a cluster job, a CI machine.

What it needs there goes into configuration files of our own, handed over by environment variables. Nothing in /etc or
in the user's home changes, and no other program's podman does either.
"""

import functools
import hashlib
import os
import resource
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from ptb_runner.sandbox import scratch

CAP_NET_ADMIN, CAP_SYS_RESOURCE = 12, 24
HEADER = "# Of ptb_runner, for a restricted machine"
IDS = 65536
NPROC = 32768  # podman lowers the limit to it by itself, and may not ask for more


@functools.cache
def restrictions(root: Path = Path("/")) -> tuple[str, ...]:
    """What this machine lacks for podman's defaults to work; empty on an ordinary one."""
    capabilities = _effective_capabilities(root)
    is_root = os.geteuid() == 0
    found = {
        "no CAP_NET_ADMIN": is_root and not capabilities >> CAP_NET_ADMIN & 1,
        "no CAP_SYS_RESOURCE": is_root and not capabilities >> CAP_SYS_RESOURCE & 1,
        "no systemd": not (root / "run/systemd/system").is_dir(),
        "cgroups cannot be written": not os.access(root / "sys/fs/cgroup", os.W_OK) and is_root,
    }
    return tuple(name for name, true in found.items() if true)


@functools.cache
def isolating() -> list[str]:
    """Options for a container without network where this machine lets nobody make a network namespace.

    In a user namespace the container may. All ids mean the same in it, so that files belong to whom they would
    otherwise; and its /proc is this machine's, since it may not mount one where parts of that are read-only.
    """
    if os.geteuid() != 0 or _effective_capabilities(Path("/")) >> CAP_NET_ADMIN & 1:
        return []
    same = f"0:0:{IDS}"
    return ["--uidmap", same, "--gidmap", same, *(["--volume", "/proc:/proc"] if _can_mount_proc() else [])]


def has_foreign_conf() -> bool:
    """Whether the environment names a containers.conf that is not ours, and so is not to be replaced by ours."""
    try:
        return not Path(os.environ["CONTAINERS_CONF"]).read_text().startswith(HEADER)
    except KeyError:
        return False
    except OSError:
        return True


def _effective_capabilities(root: Path) -> int:
    for line in (root / "proc/self/status").read_text().splitlines():
        if line.startswith("CapEff:"):
            return int(line.split()[1], 16)
    return 0


def containers_conf(
    version: tuple[int, ...], nofile: int, nproc: int, *, binds_proc: bool, has_mqueue: bool, helper_dir: str | None
) -> str:
    """The [containers] and [engine] sections for a restricted machine."""
    shared = ("netns", "ipcns", "utsns", "cgroupns") if has_mqueue else ("netns", "utsns", "cgroupns")
    lines = [
        HEADER,
        "[containers]",
        *(f'{name}="host"' for name in shared),
        'cgroups="disabled"',
        "keyring=false",
        f'default_ulimits=["nofile={nofile}:{nofile}","nproc={nproc}:{nproc}"]',
        'log_driver="k8s-file"',  # there is no journald
        "default_sysctls=[]",  # /proc/sys is read-only
        *(['volumes=["/proc:/proc"]'] if binds_proc else []),
        "[engine]",
        'runtime="crun"',
        'cgroup_manager="cgroupfs"',
        'events_logger="file"',
        *(["compose_warning_logs=false"] if version >= (5,) else []),
        *([f'helper_binaries_dir=["{helper_dir}"]'] if helper_dir else []),
    ]
    return "\n".join(lines) + "\n"


def storage_conf(root: Path, run_root: Path, fuse: str | None) -> str:
    """Where images live when the file system below them is an overlay, on which no other overlay can be put."""
    lines = ["[storage]", f'driver="{"overlay" if fuse else "vfs"}"', f'graphroot="{root}"', f'runroot="{run_root}"']
    return "\n".join([*lines, *(["[storage.options.overlay]", f'mount_program="{fuse}"'] if fuse else [])]) + "\n"


def registries_conf(mirrors: Mapping[str, str], own: str) -> str:
    """The machine's own registries.conf, and a mirror to be asked before each of the registries named.

    A mirror is HOST[:PORT][/PATH], behind http:// if it has no TLS.
    """
    added = []
    for registry, mirror in mirrors.items():
        insecure = "insecure=true\n" if mirror.startswith("http://") else ""
        location = mirror.removeprefix("https://").removeprefix("http://").rstrip("/")
        added.append(f'[[registry]]\nlocation="{registry}"\n[[registry.mirror]]\nlocation="{location}"\n{insecure}')
    return "\n".join([own, *added])


def variables(
    nested: bool, version: Sequence[int], helper_dir: str | None, mirrors: Mapping[str, str]
) -> dict[str, str]:
    """The environment variables that hand our configuration over; the files are written where need be."""
    found: dict[str, str] = {}
    if nested:
        soft = resource.getrlimit(resource.RLIMIT_NOFILE)[1], resource.getrlimit(resource.RLIMIT_NPROC)[1]
        nofile, nproc = (NPROC if limit == resource.RLIM_INFINITY else limit for limit in soft)
        text = containers_conf(
            tuple(version),
            nofile,
            min(NPROC, nproc),
            binds_proc=not _can_mount_proc(),
            has_mqueue=Path("/dev/mqueue").is_dir(),  # without it podman cannot share the host's IPC
            helper_dir=helper_dir,
        )
        found["CONTAINERS_CONF"] = _written("containers.conf", text)
        if text := _storage():
            found["CONTAINERS_STORAGE_CONF"] = _written("storage.conf", text)
    if mirrors:
        found["CONTAINERS_REGISTRIES_CONF"] = _written("registries.conf", registries_conf(mirrors, _own_registries()))
    return found


def _storage() -> str | None:
    """A storage.conf when podman's own place for images is on an overlay (and nobody configured another)."""
    if os.geteuid() != 0 or "CONTAINERS_STORAGE_CONF" in os.environ or Path("/etc/containers/storage.conf").exists():
        return None
    root = Path("/var/lib/containers/storage")
    above = next(folder for folder in [root, *root.parents] if folder.exists())
    kind = subprocess.run(["stat", "-f", "-c", "%T", above], capture_output=True, text=True).stdout.strip()
    if kind != "overlayfs":
        return None
    fuse = Path("/usr/bin/fuse-overlayfs")
    usable = fuse.exists() and os.access("/dev/fuse", os.R_OK | os.W_OK)
    return storage_conf(root, Path("/run/containers/storage"), str(fuse) if usable else None)


def _own_registries() -> str:
    for path in (Path.home() / ".config/containers/registries.conf", Path("/etc/containers/registries.conf")):
        if path.is_file():
            return path.read_text()
    return ""


@functools.cache
def _can_mount_proc() -> bool:
    """Whether a fresh /proc may be mounted: not where parts of the present one are hidden."""
    flags = ["--mount", "--pid", "--fork", *([] if os.geteuid() == 0 else ["--user", "--map-root-user"])]
    try:
        probe = ["unshare", *flags, "mount", "-t", "proc", "proc", "/proc"]
        return subprocess.run(probe, capture_output=True, timeout=10).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return True


def _written(kind: str, text: str) -> str:
    """A file with that content, its name saying which: written once, never changed."""
    path = scratch.parent() / f"{hashlib.sha256(text.encode()).hexdigest()[:12]}.{kind}"
    if not path.exists():
        new = path.with_name(f"{path.name}.{os.getpid()}")
        new.write_text(text)
        new.replace(path)
    return str(path)
