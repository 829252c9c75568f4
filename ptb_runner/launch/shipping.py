"""What a cell takes along to a machine that does not see its folder: its files, its variables by name, the program."""

from __future__ import annotations

import base64
import hashlib
import re
import tarfile
import zipfile
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from ptb_runner import keys
from ptb_runner.cell import Cell
from ptb_runner.config import ENV_REFERENCE

PYTHON = "3.12"
# Of the machine over there, whatever this one is.
_THERE = {
    "sys_platform": "linux",
    "platform_system": "Linux",
    "platform_machine": "x86_64",
    "os_name": "posix",
    "python_version": PYTHON,
    "python_full_version": f"{PYTHON}.0",
}
_LEFT_HERE = frozenset({"handoff", "beaker.yaml", "launcher.json", ".launcher.lock", ".runner.lock"})
_WHEEL = b"Wheel-Version: 1.0\nGenerator: ptb_runner\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
_EPOCH = (1980, 1, 1, 0, 0, 0)  # a wheel of the same files is the same, byte for byte


def variables_of(cell: Cell) -> list[str]:
    """Names of the variables that the cell's runner needs: keys, and what cell.yaml refers to."""
    names = [*keys.of_cell(cell.config), *ENV_REFERENCE.findall((cell.folder / "cell.yaml").read_text())]
    return list(dict.fromkeys(names))


def pack(folder: Path, sweep_file: Path, target: Path) -> None:
    """A cell's folder in an archive: an upload alone would lose links and whether a file can be run."""
    with tarfile.open(target, "w") as archive:
        for path in sorted(folder.iterdir()):
            if path.name not in _LEFT_HERE:
                archive.add(path, arcname=path.name)
        archive.add(sweep_file, arcname=sweep_file.name)


# --- The program --------------------------------------------------------------------------------------


def wheel(code: Path, folder: Path) -> Path:
    """Make a wheel in `folder` of a copy of the program that `frozen.freeze` made, with all that is beside it."""
    (info,) = code.glob("ptb_runner-*.dist-info")
    path = folder / f"{info.name.removesuffix('.dist-info')}-py3-none-any.whl"
    members = {_place(one, code): one.read_bytes() for one in sorted(code.rglob("*")) if one.is_file()}
    members[f"{info.name}/WHEEL"] = _WHEEL
    record = f"{info.name}/RECORD"
    members[record] = "".join([*(_recorded(*one) for one in members.items()), f"{record},,\n"]).encode()
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(zipfile.ZipInfo(name, _EPOCH), content, zipfile.ZIP_DEFLATED)
    return path


def _place(path: Path, code: Path) -> str:
    """Where a file is in a wheel; conf/ and templates/, beside the package in a checkout, belong inside it."""
    name = path.relative_to(code)
    return (Path("ptb_runner", name) if name.parts[0] in ("conf", "templates") else name).as_posix()


def _recorded(name: str, content: bytes) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
    return f"{name},sha256={digest},{len(content)}\n"


def pins(*extras: str) -> list[str]:
    """The program's dependencies, and theirs, in the versions that are installed here, as requirements."""
    found: dict[str, str] = {}
    todo = [("ptb-runner", frozenset(extras))]
    seen = set(todo)
    while todo:
        name, wanted_extras = todo.pop()
        for one, wanted, text in _requirements(name, wanted_extras):
            found.setdefault(one, text)
            if (one, wanted) not in seen:
                seen.add((one, wanted))
                todo.append((one, wanted))
    return sorted(found.values())


def _requirements(name: str, extras: frozenset[str]) -> Iterator[tuple[str, frozenset[str], str]]:
    """What a package requires over there: each by name, with its extras, and as a requirement."""
    from packaging.requirements import Requirement

    try:
        texts = metadata.requires(name) or []
    except metadata.PackageNotFoundError:
        return
    for requirement in map(Requirement, texts):
        marker = requirement.marker
        if marker and not any(marker.evaluate(_THERE | {"extra": extra}) for extra in extras or {""}):
            continue
        plain = re.sub(r"[-_.]+", "-", requirement.name).lower()
        try:
            text = f"{plain}=={metadata.version(plain)}"
        except metadata.PackageNotFoundError:  # not for this machine's system
            text = f"{plain}{requirement.specifier}"
        yield plain, frozenset(requirement.extras), text
