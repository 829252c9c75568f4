"""What a Modal function of ours is made of: an image with the packages that are installed here, our code, secrets."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from ptb_runner.launch.modal_cell import CODE

if TYPE_CHECKING:
    import modal

_PYTHON = "3.12"
# Of the function's machine, whatever this one is.
_THERE = {
    "sys_platform": "linux",
    "platform_system": "Linux",
    "platform_machine": "x86_64",
    "os_name": "posix",
    "python_version": _PYTHON,
    "python_full_version": f"{_PYTHON}.0",
}


def image(code: Path) -> modal.Image:
    """An image that runs a copy of the program, on the versions of its dependencies that are installed here."""
    import modal

    variables = {"PYTHONPATH": CODE, "HARBOR_TELEMETRY": "0", "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    built = modal.Image.debian_slim(python_version=_PYTHON).uv_pip_install(*pins()).env(variables)
    return built.add_local_dir(code, CODE)


def secrets(names: list[str], held: list[str]) -> list[modal.Secret]:
    """Variables of this process, by name (those that are set), and secrets that Modal holds; values are in no file."""
    import modal

    mine = modal.Secret.from_local_environ([name for name in names if name in os.environ])
    return [mine, *(modal.Secret.from_name(name) for name in held)]


def pins() -> list[str]:
    """The program's dependencies, and theirs, as requirements."""
    found: dict[str, str] = {}
    todo = [("ptb-runner", frozenset({"modal"}))]
    seen = set(todo)
    while todo:
        name, extras = todo.pop()
        for one, wanted, text in _requirements(name, extras):
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
