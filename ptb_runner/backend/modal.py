"""The Modal backend: sandboxes in an account elsewhere, many at once, each trial's hand-off on a volume of its own."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import logging
import os
import shlex
import shutil
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ptb_runner import hf_cache
from ptb_runner.backend.lifetime import lifetime_sec
from ptb_runner.cell import Cell, locked, read_cell, read_json, write_json
from ptb_runner.config import Config, ModalConfig
from ptb_runner.explain import UsageError
from ptb_runner.sandbox import modal_credentials, modal_notes, modal_owner, modal_prices
from ptb_runner.terminal import shown

log = logging.getLogger(__name__)

LONGEST_HOURS = 24  # Modal ends a sandbox then
APP_VARIABLE = "PTB_MODAL_APP"  # set by launch/modal_cell.py
RECORD = "volume.json"  # in the hand-off's folder: what the volume is called, and how to fetch what it holds


def environment(config: Config, task: Path) -> dict[str, Any]:
    _keep_quiet()
    backend = _backend(config)
    image = backend.image
    kwargs = {
        # Of a runner that is in a function itself: what is made in the function's app ends with it.
        "app_name": os.environ.get(APP_VARIABLE) or backend.app,
        "sandbox_timeout_secs": lifetime_sec(config, task),
        "image": str(Path(image).resolve()) if image and Path(image).is_dir() else image,
        "gpu": backend.gpu,
        "region": list(backend.region) or None,
        "cloud": backend.cloud,
        "secrets": list(backend.secrets) or None,
        "registry_secret": backend.registry_secret,
        "creations_per_sec": backend.creations_per_sec,
        "cell_id": (read_json(task.parent / "status.json") or {}).get("cell_id", ""),
    }
    cached = hf_cache.section(config)
    given = {key: value for key, value in kwargs.items() if value is not None} | cached.pop("kwargs", {})
    return {"import_path": "ptb_runner.sandbox.modal:ModalTrialEnvironment", "kwargs": given, **cached}


def _keep_quiet() -> None:
    """The client may be called from threads of a program that has a loop: it need not warn of it."""
    os.environ.setdefault("MODAL_ASYNC_WARNINGS", "0")


def _backend(config: Config | None) -> ModalConfig:
    return config.backend if config and isinstance(config.backend, ModalConfig) else ModalConfig()


# --- Before anything is spent -------------------------------------------------------------------------


def problems(config: Config) -> list[str]:
    if not importlib.util.find_spec("modal"):
        return ["backend=modal: the Modal client is not installed\n  pip install 'ptb-runner[modal]'"]
    found = modal_credentials.find().problem
    return [found] if found else []


def unsupported(task: Path, config: Config) -> list[str]:
    hours = lifetime_sec(config, task) / 3600
    reasons = []
    if hours > LONGEST_HOURS:
        reasons.append(
            f"its phases and what lies between them take up to {hours:.3g} h, and Modal ends a sandbox after "
            f"{LONGEST_HOURS} h: lower budget.hours, benchmark.verifier_hours or benchmark.build_hours"
        )
    settings = tomllib.loads((task / "task.toml").read_text()).get("environment", {})
    if settings.get("tpu"):
        reasons.append("[environment] tpu: Modal has none")
    if str(settings.get("os", "linux")).lower() == "windows":
        reasons.append("[environment] os 'windows': only Linux")
    return reasons


def warnings(config: Config) -> list[str]:
    backend, benchmark = _backend(config), config.benchmark
    at_once = min(config.concurrency, config.attempts)
    found = []
    if at_once > backend.max_sandboxes:
        found.append(
            f"{at_once} sandboxes at once, and backend.max_sandboxes={backend.max_sandboxes} says that your plan runs "
            "fewer (Starter 100, Team 1000): the others wait, and are not paid for"
        )
    if at_once * benchmark.gpus > backend.max_gpus:
        found.append(
            f"{at_once * benchmark.gpus} GPUs at once, and backend.max_gpus={backend.max_gpus} says that your plan "
            "gives fewer (Starter 10, Team 50): trials wait for one, within benchmark.build_hours"
        )
    if benchmark.gpus:
        found += _gpu_warnings(backend.gpu, list(benchmark.gpu_types))
    return found


def _gpu_warnings(chosen: str | None, named: list[str]) -> Iterator[str]:
    name = chosen or next(iter(named), "any")
    if name.rstrip("!").upper() not in {*modal_prices.GPU_USD, "ANY"}:
        yield f"GPU {name} is none that is known here ({', '.join(modal_prices.GPU_USD)}): Modal may refuse it"
    if chosen and named and chosen.rstrip("!").upper() not in {one.rstrip("!").upper() for one in named}:
        yield f"backend.gpu={chosen} is none of the benchmark's ({', '.join(named)}): not comparable"


# --- Hand-offs ----------------------------------------------------------------------------------------


def handoff(cell: Cell, trial: str) -> str:
    if has_handoff(cell, trial):
        return read_json(cell.handoff / trial / RECORD)["volume"]
    return modal_owner.volume_name(cell.folder, cell.id, trial)


def make_handoff(cell: Cell, trial: str) -> None:
    from ptb_runner.sandbox import modal_account

    settle_handoff(cell, trial, keep=False)  # one of a runner that was killed before the trial had a folder
    folder = cell.handoff / trial
    folder.mkdir(parents=True, exist_ok=True)
    # Before the volume: whoever finds the folder finds the volume.
    name = handoff(cell, trial)
    write_json(folder / RECORD, {"volume": name, "kept": False})
    modal_notes.note(name, {"cell": str(cell.folder), "trial": trial})
    modal_account.blocking(lambda: modal_account.make_volume(name))


def has_handoff(cell: Cell, trial: str) -> bool:
    record = read_json(cell.handoff / trial / RECORD)
    return isinstance(record, dict) and bool(record.get("kept"))


def settle_handoff(cell: Cell, trial: str, keep: bool) -> None:
    folder = cell.handoff / trial
    record = read_json(folder / RECORD)
    if not isinstance(record, dict) or (keep and record["kept"]):
        return
    from ptb_runner.sandbox import modal_account

    name = record["volume"]
    if not keep:
        modal_account.blocking(lambda: modal_account.delete_volume(name))
        shutil.rmtree(folder, ignore_errors=True)
        modal_notes.forget(name)
        return
    kept = modal_owner.kept_name(cell.folder, cell.id, trial)
    modal_account.blocking(lambda: modal_account.rename_volume(name, kept))
    write_json(folder / RECORD, {"volume": kept, "kept": True})
    modal_notes.forget(name)


def _stays(volume: str) -> bool:
    """Whether the volume of a runner that is gone is not to be deleted.

    That runner may have been killed between a trial's result and what becomes of its model: then the cell decides, as
    it would have done. What belongs to a cell that another runner has at work is that one's to settle.
    """
    from ptb_runner import trial_folders

    noted = modal_notes.noted(volume)
    if "cell" not in noted:
        return False
    folder, trial = Path(noted["cell"]), noted["trial"]
    if (read_json(folder / "handoff" / trial / RECORD) or {}).get("volume") != volume:
        return False
    try:
        with locked(folder):
            cell = read_cell(folder)
            if keep := trial_folders.keeps_model(cell, trial):
                settle_handoff(cell, trial, keep)
            return keep
    except (UsageError, OSError) as error:  # held by a runner; or not to be read here, now
        log.warning("volume %s is left alone: %s", volume, error)
        return True


def fetch_commands(cell: Cell) -> list[str]:
    commands = []
    for path in sorted(cell.handoff.glob(f"*/{RECORD}")):
        record = read_json(path)
        if isinstance(record, dict) and record.get("kept") and not (path.parent / "final_model").exists():
            place = shlex.quote(str(shown(path.parent)))
            commands.append(f"modal volume get {record['volume']} final_model {place}/")
    return commands


# --- The hub's cache ----------------------------------------------------------------------------------


def fill_hf_cache(config: Config, wanted: list[hf_cache.Repository], show: Callable[[hf_cache.Progress], Any]) -> str:
    from ptb_runner.launch import modal_hub

    if faults := problems(config):
        raise UsageError(faults[0])
    _keep_quiet()
    return modal_hub.fill_volume(config, wanted, show)


# --- What is there ------------------------------------------------------------------------------------


def checks(config: Config) -> Iterator[tuple[str, bool, str]]:
    faults = problems(config)
    yield from (("modal", True, fault) for fault in faults)
    if faults:
        return
    _keep_quiet()
    from ptb_runner.launch import modal_sweeps
    from ptb_runner.sandbox import modal_account

    source = modal_credentials.find().source
    yield "modal", False, f"client {importlib.metadata.version('modal')}, credentials from {source}"
    try:
        sandboxes = modal_account.blocking(lambda: modal_account.sandboxes(_backend(config).app))
        volumes = modal_account.blocking(modal_account.volumes)
        sweeps = modal_account.blocking(modal_sweeps.found)
    except Exception as error:
        yield "account", True, _why_silent(error)
        return
    cost = sum(one.usd_per_hour for one in sandboxes)
    total = f"{len(sandboxes)} sandboxes of ours, about {cost:.2f} dollars an hour"
    yield "account", False, f"{total}; {len(volumes)} volumes; {len(sweeps)} detached sweeps"
    for one in sandboxes:
        run, trial = one.tags.get(modal_account.RUN, ""), one.tags.get(modal_account.TRIAL, "")
        host = one.tags.get(modal_account.HOST, "another machine")
        spent = f"for {one.hours:.1f} h, about {one.usd_per_hour:.2f} dollars an hour"
        yield "sandbox", False, f"{one.sandbox.object_id}: {trial} of {run}, {spent}; {_whose(one.owner, host)}"
    yield from (("sweep", False, str(one)) for one in sweeps)
    for name in volumes:
        owner = modal_owner.owner_of_volume(name)
        kept = f"kept, to fetch: modal volume get {name} final_model .; to delete: modal volume delete {name}"
        yield "volume", False, f"{name}: {_whose(owner, 'another machine', ', or keeps it') if owner else kept}"


def _why_silent(error: Exception) -> str:
    """Why the account cannot be seen, and what to do."""
    from modal.exception import AuthError

    from ptb_runner.sandbox import modal_account

    said = modal_account.describe(error)
    return (
        f"Modal refuses the token: {said}\n  modal token new"
        if isinstance(error, AuthError)
        else f"Modal does not answer: {said}"
    )


def _whose(owner: str, host: str, alternative: str = "") -> str:
    """Who has it, and what to do about it."""
    if modal_owner.is_dead(owner):
        return f"its runner is gone: ptb clean backend=modal removes it{alternative}"
    return "its runner is at work" if modal_owner.is_here(owner) else f"of a runner on {host}, left alone"


def reap(config: Config | None) -> list[str]:
    """Sandboxes, then volumes, whose runner on this machine is gone; none when Modal cannot be asked."""
    if not importlib.util.find_spec("modal") or modal_credentials.find().problem:
        return []
    _keep_quiet()
    from ptb_runner.sandbox import modal_account

    try:
        return modal_account.blocking(lambda: modal_account.reap(_backend(config).app, _stays))
    except Exception as error:
        log.warning("Modal could not be asked for leftovers: %s", modal_account.describe(error))
        return []


def clean_images(config: Config) -> list[str]:
    return []  # Modal keeps images at no cost, and has no way to remove one


def kill_all() -> None:
    from ptb_runner.sandbox import modal

    modal.kill_all()


async def all_ended() -> None:
    from ptb_runner.sandbox import modal

    await modal.all_ended()
