"""The bubblewrap backend: Linux namespaces on this machine, nothing around them but a scratch folder."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ptb_runner import hf_cache
from ptb_runner.agent import clis
from ptb_runner.backend import host_folder
from ptb_runner.config import BubblewrapConfig, Config
from ptb_runner.sandbox import bubblewrap, bwrap

kill_all = bubblewrap.kill_all
handoff, make_handoff = host_folder.handoff, host_folder.make_handoff
has_handoff = host_folder.has_handoff
settle_handoff, fetch_commands = host_folder.settle_handoff, host_folder.fetch_commands
fill_hf_cache = hf_cache.fill_host


def environment(config: Config, task: Path) -> dict[str, Any]:
    cached = hf_cache.section(config)
    kwargs = _kwargs(config) | cached.pop("kwargs", {})
    return {"import_path": "ptb_runner.sandbox.bubblewrap:BubblewrapEnvironment", "kwargs": kwargs, **cached}


def _kwargs(config: Config) -> dict[str, Any]:
    backend = config.backend
    assert isinstance(backend, BubblewrapConfig)
    kwargs: dict[str, Any] = {"read_only_paths": list(backend.read_only_paths)}
    return kwargs | ({"scratch_dir": backend.scratch_dir} if backend.scratch_dir else {})


def problems(config: Config) -> list[str]:
    return bubblewrap.problems(bubblewrap.BubblewrapOptions(**_kwargs(config)))


def unsupported(task: Path, config: Config) -> list[str]:
    return bubblewrap.unsupported(task)


def warnings(config: Config) -> list[str]:
    """An agent's CLI that no sandbox would find: the installation in each needs the network, and may not work there."""
    program = clis.PROGRAMS.get(config.agent.name or "")
    own = [Path(path, "bin") for path in _kwargs(config)["read_only_paths"]]
    if program is None or shutil.which(program, path=os.pathsep.join(map(str, [*own, *bwrap.SYSTEM_PATH]))):
        return []
    return [
        f"the sandbox lacks {program}, which each trial then tries to install over the network; "
        f"better: backend.read_only_paths=[FOLDER], with FOLDER/bin/{program}"
    ]


def checks(config: Config) -> Iterator[tuple[str, bool, str]]:
    faults = problems(config)
    yield from (("bubblewrap", True, fault) for fault in faults)
    if not faults:
        yield "bubblewrap", False, f"{bubblewrap.describe()}; a sandbox started and ended"


def reap(config: Config | None) -> list[str]:
    scratch_dir = config.backend.scratch_dir if config and isinstance(config.backend, BubblewrapConfig) else None
    return [str(folder) for folder in bubblewrap.reap(Path(scratch_dir) if scratch_dir else None)]


def clean_images(config: Config) -> list[str]:
    return []


async def all_ended() -> None:
    """What ends here has ended when the trial has."""
