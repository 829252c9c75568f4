"""A copy of the program as it is now, from which jobs run: what is edited while they wait in a queue stays out.

The installed packages (Harbor and all else) are not copied; they are expected to stay as they are.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from ptb_runner.cell import content_hash, write_json
from ptb_runner.config import Config
from ptb_runner.paths import CONF, PACKAGE, TEMPLATES
from ptb_runner.provenance import git_state

_NOT_CODE = shutil.ignore_patterns("__pycache__", ".git", ".venv")


def freeze(sweep: Path, cells: list[Config]) -> Path:
    """Copy the program, and the modules of the cells' own agents, to <sweep>/.code/<hash>, and return that folder."""
    place = sweep / ".code"
    place.mkdir(exist_ok=True)
    copy = Path(tempfile.mkdtemp(prefix=".new-", dir=place))
    copy.chmod(0o755)
    for source in dict.fromkeys((*_program(), *agents(cells))):
        if source.is_dir():
            shutil.copytree(source, copy / source.name, ignore=_NOT_CODE, dirs_exist_ok=True)
        else:
            shutil.copy2(source, copy / source.name)
    write_json(copy / "git.json", git_state())
    _add_metadata(copy)
    final = place / content_hash(copy)[:16]
    if final.exists():
        shutil.rmtree(copy)
    else:
        copy.rename(final)
    return final


def _add_metadata(copy: Path) -> None:
    """What says which version it is, for places where it is not installed."""
    known = metadata.distribution("ptb-runner")
    place = copy / f"ptb_runner-{known.version}.dist-info"
    place.mkdir()
    (place / "METADATA").write_text(known.read_text("METADATA") or "")


def environment(code: Path) -> dict[str, str]:
    """Variables with which Python finds the copy first.

    Without the second, `python -m` puts the folder one stands in before it, which is often the checkout. That folder
    comes last but is there: agents of one's own may import from it.
    """
    rest = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    path = dict.fromkeys([str(code), *filter(None, rest), str(Path.cwd())])
    return {"PYTHONPATH": os.pathsep.join(path), "PYTHONSAFEPATH": "1"}


def _program() -> Iterator[Path]:
    yield PACKAGE
    yield from (folder for folder in (CONF, TEMPLATES) if not folder.is_relative_to(PACKAGE))  # in a wheel they are


def agents(cells: list[Config]) -> Iterator[Path]:
    """The files or folders of agents of the user's own, as far as they are not installed packages."""
    for name in dict.fromkeys(cell.agent.import_path.split(":")[0] for cell in cells if cell.agent.import_path):
        spec = importlib.util.find_spec(name.partition(".")[0])
        places = list(spec.submodule_search_locations or [spec.origin]) if spec else []
        for place in places:
            path = Path(place or "")
            if path.exists() and not any(path.is_relative_to(prefix) for prefix in (sys.prefix, sys.base_prefix)):
                yield path
