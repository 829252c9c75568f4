"""Many cells from one command line: expand, compose, check all, plan, and hand them to a launcher.

Nothing is launched, and nothing left on disk, unless every cell is sound. `sweep.yaml` lists all cells before
the first one starts; running the same command again in the same folder finishes what is missing.
"""

from __future__ import annotations

import itertools
import json
import logging
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import DictConfig, open_dict, read_write
from omegaconf.errors import OmegaConfBaseException

from ptb_runner import check, plan
from ptb_runner import launch as launcher
from ptb_runner.cell import Cell, new_folder
from ptb_runner.config import Config, typed, without_secrets
from ptb_runner.explain import UsageError, explain
from ptb_runner.sweepfile import read_sweep, write_sweep

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Composed:
    """One cell before it is on disk: what varies (`overrides`), and its configuration, typed and as plain data."""

    number: int
    overrides: list[str]
    config: Config
    plain: dict[str, Any]


# --- Composing and checking ---------------------------------------------------------------------------


def compose(loader: ConfigLoaderImpl, master: DictConfig, jobs: list[list[str]]) -> Iterator[DictConfig | Exception]:
    """Compose every job as Hydra's own `load_sweep_config` does, or yield what it raised.

    Loading the files of the groups is what takes Hydra's time; jobs that choose the same files share it, and
    differ by the values laid over them. A test compares the outcome with Hydra's own.
    """
    loaded: dict[tuple[str, ...], DictConfig | Exception] = {}
    for job in jobs:
        choices, values = _split(loader, job)
        key = tuple(sorted(override.input_line or "" for override in choices))
        if key not in loaded:
            loaded[key] = _load(loader, master, [str(override.input_line) for override in choices])
        base = loaded[key]
        yield base if isinstance(base, Exception) else _with_values(base, values)


def _split(loader: ConfigLoaderImpl, job: list[str]) -> tuple[list[Override], list[Override]]:
    """Overrides that choose files, and those that set values."""
    choices, values = [], []
    for override in OverridesParser.create().parse_overrides(job):
        chooses = loader.repository.group_exists(override.get_key_element().lstrip("+~").split("@")[0])
        (choices if chooses else values).append(override)
    return choices, values


def _load(loader: ConfigLoaderImpl, master: DictConfig, choices: list[str]) -> DictConfig | Exception:
    try:
        config = loader.load_sweep_config(master, choices)
    except (HydraException, OmegaConfBaseException) as error:
        return error
    with read_write(config), open_dict(config):
        config.pop("hydra")
    return config


def _with_values(base: DictConfig, values: list[Override]) -> DictConfig | Exception:
    config = base.copy()
    try:
        ConfigLoaderImpl._apply_overrides_to_config(values, config)
    except (HydraException, OmegaConfBaseException) as error:
        return error
    return config


def check_all(
    loader: ConfigLoaderImpl, master: DictConfig, jobs: list[list[str]], conf_dirs: list[str]
) -> list[Composed]:
    """Compose and check every cell; raises UsageError that lists all bad ones, equal faults once."""
    good: list[Composed] = []
    bad: dict[str, list[int]] = {}
    for number, (job, config) in enumerate(zip(jobs, compose(loader, master, jobs), strict=True)):
        faults = [explain(config, conf_dirs)] if isinstance(config, Exception) else check.problems(config, conf_dirs)
        if not faults and not isinstance(config, Exception):
            good.append(Composed(number, job, typed(config), without_secrets(config)))
        for fault in faults:
            bad.setdefault(fault, []).append(number)
    if not bad and not good[0].config.dry_run:
        _preflight(good, bad)
    _one_launcher(good, bad)
    if bad:
        raise UsageError("\nerror: ".join(_faults(bad, jobs)))
    return good


def _preflight(good: list[Composed], bad: dict[str, list[int]]) -> None:
    for fault, numbers in _machine_faults([cell.config for cell in good]).items():
        bad.setdefault(fault, []).extend(good[index].number for index in numbers)


def _machine_faults(configs: list[Config]) -> dict[str, list[int]]:
    """What this machine lacks, and for which of the cells; looked at once for each different need, not once a cell."""
    groups: dict[str, list[int]] = {}
    for index, config in enumerate(configs):
        groups.setdefault(repr((config.agent, config.backend, config.benchmark, config.serve)), []).append(index)
    faults: dict[str, list[int]] = {}
    for alike in groups.values():
        for fault in plan.preflight(configs[alike[0]]):
            faults.setdefault(fault, []).extend(alike)
    for fault in launcher.problems(configs):
        faults[fault] = list(range(len(configs)))
    return faults


def check_machine(configs: list[Config]) -> None:
    """Raise UsageError with everything that this machine lacks for some cells."""
    if faults := _machine_faults(configs):
        raise UsageError("\nerror: ".join(faults))


def _one_launcher(good: list[Composed], bad: dict[str, list[int]]) -> None:
    different = {json.dumps(cell.plain["launcher"], sort_keys=True): cell.number for cell in good}
    if len(different) > 1:
        fault = "launcher: all cells of a sweep have the same launcher\n  start a sweep for each launcher"
        bad.setdefault(fault, []).extend(different.values())


def _faults(bad: dict[str, list[int]], jobs: list[list[str]]) -> Iterator[str]:
    """Each fault with the cells that have it."""
    for fault, numbers in bad.items():
        which = f"cell {numbers[0]} ({' '.join(jobs[numbers[0]])})" if len(numbers) == 1 else _many(numbers)
        yield f"{which}: {fault}"


def _many(numbers: list[int]) -> str:
    listed = ", ".join(str(number) for number in numbers[:8])
    return f"cells {listed}{f' and {len(numbers) - 8} more' if len(numbers) > 8 else ''}"


# --- Launching ----------------------------------------------------------------------------------------


def launch(loader: ConfigLoaderImpl, master: DictConfig, jobs: list[list[str]], conf_dirs: list[str]) -> int:
    """Check, prepare, plan and run a sweep, and return the exit code of the command.

    Raises UsageError, with nothing launched, when any cell is not sound.
    """
    composed = check_all(loader, master, jobs, conf_dirs)
    folder, new = _folder(master)
    try:
        prepared = prepare(folder, composed)
    except UsageError:
        if new:
            shutil.rmtree(folder, ignore_errors=True)
        raise
    return _start(folder, prepared)


def launch_one(config: DictConfig, folder: Path, overrides: list[str]) -> int:
    """Run a single cell whose launcher works on sweeps: a sweep of one, in `folder`; its configuration is sound."""
    if (folder / "cell.yaml").exists():
        raise UsageError(f"{folder}: holds a cell that ran by itself\n  choose another folder: hydra.run.dir=DIR")
    cell = Composed(0, overrides, typed(config), without_secrets(config))
    return _start(folder.resolve(), prepare(folder.resolve(), [cell]))


def _start(folder: Path, prepared: list[Cell]) -> int:
    """Show the plan of prepared cells, and run them unless it is a dry run."""
    from ptb_runner import display, terminal

    out = terminal.console()
    display.print_sweep_plan(folder, [plan.plan(cell) for cell in prepared], out)
    if prepared[0].config.dry_run:
        for text in launcher.preview(folder, prepared):
            out.print(text, markup=False)
        refusals = _refusals(prepared)
        for refusal in refusals:
            out.print(f"not ready: {refusal}", markup=False)
        out.print(f"nothing was launched; next: ptb resume {terminal.shown(folder)}", markup=False)
        return 1 if refusals else 0
    return run(folder, prepared)


def _refusals(prepared: list[Cell]) -> list[str]:
    """Why planned cells could not be launched here, each reason once."""
    of_machine = _machine_faults([cell.config for cell in prepared])
    of_tasks = [] if of_machine else [text for cell in prepared for text in plan.task_refusals(cell)]
    return list(dict.fromkeys([*of_machine, *of_tasks]))


def _folder(master: DictConfig) -> tuple[Path, bool]:
    """The sweep's folder: the one that was asked for, else one of its own; and whether it is new."""
    wanted = Path(master.hydra.sweep.dir)
    if any(text.startswith("hydra.sweep.dir=") for text in master.hydra.overrides.hydra):
        new = not wanted.exists()
        wanted.mkdir(parents=True, exist_ok=True)
        return wanted.resolve(), new
    return new_folder(wanted).resolve(), True


def run(folder: Path, prepared: list[Cell]) -> int:
    """Run what is missing of the cells of a sweep where their launcher says, then collect; returns the exit code."""
    from ptb_runner import display, terminal
    from ptb_runner.results.collect import collect

    out, where = terminal.console(), terminal.shown(folder)
    try:
        ended = launcher.launch(folder, prepared, out)
    except (KeyboardInterrupt, UsageError):
        if prepared[0].config.launcher.kind in launcher.IN_JOBS:
            left = "jobs that were submitted go on, and others may be missing"
            out.print(f"{left}; next: ptb status {where}, ptb stop or ptb resume", markup=False)
        raise
    if ended is launcher.Ended.detached:
        out.print(f"the jobs go on; next: ptb status {where} or ptb stop {where}", markup=False)
        return 0
    collected = collect(folder)
    display.print_sweep(folder, collected, out)
    if ended is launcher.Ended.interrupted:
        return 130
    return 0 if collected.complete else 1


# --- On disk ------------------------------------------------------------------------------------------


def prepare(folder: Path, composed: list[Composed]) -> list[Cell]:
    """Render every cell below `folder` and write sweep.yaml; cells that are there already keep their place.

    Raises UsageError, listing all cells that cannot be prepared, and takes back what it made.
    """
    before = read_sweep(folder)["cells"] if (folder / "sweep.yaml").exists() else []
    places = _places(before, composed)
    new = [folder / str(number) for number in places if not (folder / str(number)).exists()]
    prepared, bad = [], {}
    for cell, number in zip(composed, places, strict=True):
        place = folder / str(number)
        place.mkdir(parents=True, exist_ok=True)
        try:
            prepared.append(plan.prepare(cell.config, cell.plain, place, cell.overrides))
        except UsageError as error:
            bad.setdefault(str(error), []).append(cell.number)
    if bad:
        for place in new:
            shutil.rmtree(place, ignore_errors=True)
        raise UsageError("\nerror: ".join(_faults(bad, [cell.overrides for cell in composed])))
    write_sweep(folder, before, prepared)
    return prepared


def _places(before: list[dict[str, Any]], composed: list[Composed]) -> list[int]:
    """The folder number of each cell: its old one when it was there, else the next that is free."""
    taken = {_key(entry["overrides"]): entry["number"] for entry in before}
    free = itertools.count(max(taken.values(), default=-1) + 1)
    return [taken[key] if (key := _key(cell.overrides)) in taken else next(free) for cell in composed]


def _key(overrides: list[str]) -> tuple[str, ...]:
    """What names a cell within its sweep: its overrides, but for those that cannot change what it measures."""
    kept = []
    for text in overrides:
        name = text.partition("=")[0].lstrip("+~")
        item = check.find(name)
        if name != "attempts" and (item is None or item.result):
            kept.append(text)
    return tuple(sorted(kept))
