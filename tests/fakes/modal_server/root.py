"""The file system of sandboxes: this machine's programs, and a few folders of their own, all writable by overlay.

An image is a list of layers, lowest first. Two overlays make a root: one of the layers, and one of their `usr` folders
over this machine's, since an overlay does not show what is mounted inside its lower folder.
"""

from __future__ import annotations

import shlex
import shutil
import sys
from pathlib import Path

FROM_HOST = (
    *("passwd", "shadow", "group", "hosts", "resolv.conf", "nsswitch.conf", "ld.so.cache", "ssl", "alternatives"),
    *("pam.d", "pam.conf", "security", "login.defs"),  # what su reads
)
FOLDERS = ("usr", "home", "root", "tmp", "var/tmp", "run", "opt", "proc", "sys", "dev", "etc", "srv", "mnt")
PATH = f"{sys.prefix}/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def make_base(folder: Path) -> Path:
    """The lowest layer, made once."""
    for name in FOLDERS:
        (folder / name).mkdir(parents=True, exist_ok=True)
    for name in ("tmp", "var/tmp"):
        (folder / name).chmod(0o1777)
    for name in ("bin", "sbin", "lib", "lib64"):
        if (Path("/") / name).exists():
            (folder / name).symlink_to(f"usr/{name}")
    for name in FROM_HOST:
        source, target = Path("/etc") / name, folder / "etc" / name
        if source.is_dir():
            shutil.copytree(source, target, symlinks=True)
        elif source.exists():
            shutil.copy(source, target)
    return folder


def mount_script(layers: list[Path], own: Path) -> list[str]:
    """Shell lines that put the root of an image together at own/root, with own/upper for what is written."""
    root, upper = own / "root", own / "upper"
    for folder in (root, upper / "files", upper / "usr", own / "work" / "files", own / "work" / "usr"):
        folder.mkdir(parents=True, exist_ok=True)
    usr = [layer / "usr" for layer in reversed(layers) if (layer / "usr").is_dir()]
    lines = [
        "set -e",
        _overlay(list(reversed(layers)), upper / "files", own / "work" / "files", root),
        _overlay([*usr, Path("/usr")], upper / "usr", own / "work" / "usr", root / "usr"),
        f"mount -t proc proc {quote(root / 'proc')}",
        f"mount --rbind /dev {quote(root / 'dev')}",
    ]
    for python in dict.fromkeys((sys.prefix, sys.base_prefix)):  # with NumPy, for the tasks' programs
        if not Path(python).is_relative_to("/usr"):
            lines += bind(Path(python), root, python, read_only=True)
    return lines


def bind(source: Path, root: Path, target: str, read_only: bool) -> list[str]:
    """Shell lines that show a folder of this machine in a root."""
    place = quote(f"{root}{target}")
    lines = [f"mkdir -p {place}", f"mount --bind {quote(source)} {place}"]
    return [*lines, *([f"mount -o remount,bind,ro {place}"] if read_only else [])]


def _overlay(lower: list[Path], upper: Path, work: Path, target: Path) -> str:
    layers = ":".join(str(path) for path in lower)
    return f"mount -t overlay overlay -o lowerdir={layers},upperdir={upper},workdir={work} {quote(target)}"


def quote(text: Path | str) -> str:
    return shlex.quote(str(text))
