"""Cells in Modal functions: the runner itself is in the cloud, and the machine that started it may go to sleep.

A sweep has an app and a volume of its own there, which <sweep>/launcher.json names, and a call of the app's one
function for each cell. Any process that has the sweep's folder can ask how the calls are, fetch what they have done,
or cancel them; once all of them are over and fetched, app and volume are removed.
"""

from __future__ import annotations

import asyncio
import importlib.util
import math
import re
import secrets
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from ptb_runner import watch
from ptb_runner.budget import agent_hours, verifier_hours
from ptb_runner.cell import Cell, now
from ptb_runner.config import Config, ModalLauncherConfig
from ptb_runner.explain import UsageError
from ptb_runner.launch import Ended, frozen, job, modal_cell, modal_image, submitted
from ptb_runner.launch.modal_files import fetch, fetch_status
from ptb_runner.launch.shipping import pack, variables_of
from ptb_runner.launch.states import WAITED_FOR, JobState, Where, judged, note
from ptb_runner.sandbox import modal_credentials, modal_notes

if TYPE_CHECKING:
    import modal

_ENGINES = ("podman", "docker")
_OVERHEAD_SEC = 900  # of a function's time, for what is not the cell's: stopping it, and copying the last of it


def launch(sweep: Path, cells: list[Cell], out: Console) -> Ended:
    """Submit what is not over, and wait for it unless `launcher.wait=false`; Ctrl-C leaves or cancels the calls."""
    poll_sec, numbers = _settings(cells[0].config).poll_sec, [submitted.number(cell) for cell in cells]
    with submitted.alone(sweep):
        submit(sweep, cells)
    return submitted.attend(
        sweep, cells, out, lambda: submitted.wait(sweep, cells, poll_sec, refresh), lambda: cancel(sweep, numbers)
    )


def _settings(config: Config) -> ModalLauncherConfig:
    assert isinstance(config.launcher, ModalLauncherConfig)
    return config.launcher


def problems(settings: ModalLauncherConfig, cells: list[Config]) -> list[str]:
    """What would keep the cells from running in Modal functions; nothing is created."""
    found = [*dict.fromkeys(_without_engine(cells)), *dict.fromkeys(_too_long(settings, cells))]
    if importlib.util.find_spec("modal") is None:
        return [*found, "launcher=modal: the modal client is not installed\n  pip install 'ptb-runner[modal]'"]
    credentials = modal_credentials.find()
    return [*found, f"launcher=modal: {credentials.problem}"] if credentials.problem else found


def _without_engine(cells: list[Config]) -> Iterator[str]:
    for cell in cells:
        if cell.backend.kind in _ENGINES:
            yield f"launcher=modal: there is no {cell.backend.kind} in a Modal function\n  type backend=modal"


def _too_long(settings: ModalLauncherConfig, cells: list[Config]) -> Iterator[str]:
    """A cell must fit into its function's time: Modal ends it then."""
    for cell in cells:
        agent, verifier = agent_hours(cell) or 0.0, verifier_hours(cell) or 0.0
        one = agent + verifier + 2 * cell.benchmark.build_hours
        rounds = math.ceil(cell.attempts / cell.concurrency)
        if rounds * one > settings.timeout_hours:
            yield (
                f"launcher.timeout_hours={settings.timeout_hours:g}: too short for {cell.attempts} trials of up to "
                f"{one:g} h, {cell.concurrency} at a time\n  raise concurrency, or split attempts over several sweeps"
                f"{'' if settings.timeout_hours == 24 else '; at most 24 h are allowed'}"
            )


# --- Submission ---------------------------------------------------------------------------------------


def submit(sweep: Path, cells: list[Cell]) -> None:
    """Give every cell that is not over, and has no call that works for it, a call of its own.

    Raises UsageError when Modal refuses; the cells that had been submitted until then run.
    """
    sweep = sweep.resolve()
    due = submitted.due(sweep, cells, refresh(sweep))
    if not due:
        return
    code = frozen.freeze(sweep, [cell.config for cell in due])
    # Written before anything is created: what is created must be known, whatever happens to this process.
    names = _names(sweep)
    for cell in due:
        _begin(cell, code)
    try:
        asyncio.run(_submit(sweep, due, code, names))
    except UsageError:
        raise
    except Exception as error:
        raise UsageError(f"Modal refused the cells: {_said(error)}\n  ptb status {sweep} tells which run") from error


def _names(sweep: Path) -> dict[str, str]:
    """The sweep's app and volume: those that it has, or new ones."""
    known = job.read(sweep)
    if not known.get("app"):
        plain = re.sub(r"[^A-Za-z0-9-]+", "-", f"{sweep.parent.name}-{sweep.name}").strip("-")[-40:]
        name = f"sweep-{plain}-{secrets.token_hex(4)}"  # `ptb-...` are trials' volumes
        job.record(sweep, kind="modal", app=name, volume=name, calls=known.get("calls", {}), created_at=now())
        known = job.read(sweep)
    _note(sweep, known)
    return {"app": known["app"], "volume": known["volume"]}


def _note(sweep: Path, known: dict[str, Any]) -> None:
    """Write down where the sweep's folder is: without it nobody could say whose the app and the volume are."""
    where = {"sweep": str(sweep), "calls": sorted(known.get("calls", {}).values())}
    if known.get("volume") and modal_notes.noted(known["volume"]) != where:
        modal_notes.note(known["volume"], where)


def _begin(cell: Cell, code: Path) -> None:
    times = job.read(cell.folder).get("submissions", 0) + 1
    place = f"{cell.folder.name}-{times}"
    submitted.begin(cell, place=place, submissions=times, code=f"{code.parent.name}/{code.name}")


async def _submit(sweep: Path, due: list[Cell], code: Path, names: dict[str, str]) -> None:
    import modal

    settings = _settings(due[0].config)
    variables = sorted({name for cell in due for name in variables_of(cell)})
    volume = modal.Volume.from_name(names["volume"], create_if_missing=True, version=2)
    await volume.hydrate.aio()
    with tempfile.TemporaryDirectory(prefix="ptb-submit-") as folder:
        async with volume.batch_upload(force=True) as batch:
            for cell in due:
                packed = Path(folder, f"{cell.folder.name}.tar")
                pack(cell.folder, sweep / "sweep.yaml", packed)
                batch.put_file(packed, f"/{job.read(cell.folder)['place']}/cell.tar")
    app = modal.App(names["app"], include_source=False)
    function = app.function(
        image=modal_image.image(code),
        secrets=modal_image.secrets(variables, list(settings.secrets)),
        volumes={modal_cell.RESULTS: volume},
        timeout=round(settings.timeout_hours * 3600),
        cpu=settings.cpus,
        memory=settings.memory_mb,
        max_containers=settings.max_cells,
        single_use_containers=True,
        include_source=False,
    )(modal_cell.run)
    await app.deploy.aio(name=names["app"])
    for cell in due:
        place, number = job.read(cell.folder)["place"], int(cell.folder.name)
        time_sec = settings.timeout_hours * 3600 - _OVERHEAD_SEC
        call = await function.spawn.aio(
            names["app"], names["volume"], place, number, settings.sync_sec, time_sec, variables
        )
        job.record(cell.folder, job_id=call.object_id)
        job.record(sweep, calls=job.read(sweep)["calls"] | {str(number): call.object_id})
        _note(sweep, job.read(sweep))


# --- How they are -------------------------------------------------------------------------------------


def refresh(sweep: Path) -> dict[int, JobState]:
    """Where the call of each cell is, by the cell's number; its status, and when it is over all it did, is fetched.

    Once every call is over and fetched, the sweep's app and volume are removed.
    """
    sweep = sweep.resolve()
    records = {int(path.parent.name): job.read(path.parent) for path in sweep.glob("[0-9]*/launcher.json")}
    records = {number: one for number, one in sorted(records.items()) if one.get("kind") == "modal"}
    if not records:
        return {}
    known = asyncio.run(_ask(sweep, records))
    found = {number: judged(sweep / str(number), job.read(sweep / str(number)), *known[number]) for number in records}
    for number, one in found.items():
        note(sweep / str(number), one)
    return found


async def _ask(sweep: Path, records: dict[int, dict[str, Any]]) -> dict[int, tuple[Where, str]]:
    open_ones = {number: one for number, one in records.items() if not one.get("fetched_at")}
    known: dict[int, tuple[Where, str]] = dict.fromkeys(records, (Where.lost, "its call is over"))
    names = job.read(sweep)
    _note(sweep, names)
    if open_ones:
        import modal

        volume = modal.Volume.from_name(names["volume"])
        asked = (_look(sweep / str(number), one, volume) for number, one in open_ones.items())
        known |= dict(zip(open_ones, await asyncio.gather(*asked), strict=True))
    if names.get("app") and not any(where in WAITED_FOR for where, _ in known.values()):
        await _clear(sweep, names)
    return known


async def _look(folder: Path, record: dict[str, Any], volume: modal.Volume) -> tuple[Where, str]:
    """Where one call is; fetches what is new of its cell."""
    try:
        over = await reason_over(record)
        if over is None:
            state = await fetch_status(volume, record["place"], folder)
            if state in watch.OVER:  # its call is about to end: nobody is to find the status without the results
                await fetch(volume, record["place"], folder)
            return (Where.queued if state in (None, "planned") else Where.running), ""
        await fetch(volume, record["place"], folder, whole=True)
        await asyncio.to_thread(submitted.settle, folder)
    except Exception as error:
        return Where.unknown, f"Modal does not answer: {_said(error)}"
    job.record(folder, fetched_at=now(), error=record.get("error") or over or None)
    return Where.lost, over


async def reason_over(record: dict[str, Any]) -> str | None:
    """Why a call is over, in words (empty: it returned); None while it is not."""
    import modal

    if not record["job_id"]:
        return "it was never submitted"
    try:
        await modal.FunctionCall.from_id(record["job_id"]).get.aio(timeout=0)
    except TimeoutError as error:
        if isinstance(error, modal.exception.FunctionTimeoutError):
            return "its function's time was up"
        return None
    except modal.exception.OutputExpiredError:
        return "its call ended long ago"
    except modal.exception.NotFoundError:
        return "its call is unknown to Modal"
    except (modal.exception.ConnectionError, modal.exception.AuthError, OSError):
        raise
    except (Exception, modal.exception.InputCancellation) as error:  # whatever the function raised
        return _said(error)
    return ""


async def _clear(sweep: Path, names: dict[str, Any]) -> None:
    """Remove what the sweep has at Modal, unless Modal does not answer: then the next look does it."""
    if await remove(names["app"], names["volume"]):
        job.record(sweep, app=None, volume=None, cleared_at=now())
        modal_notes.forget(names["volume"])


async def remove(app: str, volume: str) -> bool:
    """Remove a sweep's app, with which goes every container and sandbox of it, then its volume."""
    import modal

    try:
        await (await modal.App.lookup.aio(app)).stop.aio()
    except modal.exception.NotFoundError:
        pass
    except Exception:
        return False
    await modal.Volume.objects.delete.aio(volume, allow_missing=True)
    return True


def _said(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " ".join(lines[:2])[:300] or type(error).__name__


def bring(folder: Path) -> bool:
    """Fetch what a cell has written until now, for those who want to look at it; whether its call still runs."""
    record = job.read(folder)
    if record.get("kind") != "modal" or record.get("fetched_at"):
        return False
    return _refresh_one(folder, record)


def _refresh_one(folder: Path, record: dict[str, Any]) -> bool:
    import modal

    async def look() -> bool:
        volume = modal.Volume.from_name(job.read(folder.parent)["volume"])
        if await reason_over(record) is not None:
            return False
        await fetch(volume, record["place"], folder)
        return True

    running = asyncio.run(look())
    if not running:
        refresh(folder.parent)
    return running


# --- Cancelling ---------------------------------------------------------------------------------------


def cancel(sweep: Path, numbers: list[int] | None = None, timeout_sec: float = 120.0) -> list[int]:
    """Cancel the calls of these cells (None: of all), wait until they are over, and return those that are not.

    The running ones stop their trials and remove their sandboxes first. What does not stop in time is ended with its
    container.
    """
    sweep = sweep.resolve()
    chosen = [
        number
        for number, one in refresh(sweep).items()
        if one.where in WAITED_FOR and (numbers is None or number in numbers)
    ]
    for number in chosen:
        job.record(sweep / str(number), cancelled_at=now())
    asyncio.run(_cancel(sweep, chosen, terminate=False))
    if left := submitted.still_running(sweep, chosen, timeout_sec, refresh):
        asyncio.run(_cancel(sweep, left, terminate=True))
        left = submitted.still_running(sweep, left, timeout_sec / 4, refresh)
    return left


async def _cancel(sweep: Path, numbers: list[int], *, terminate: bool) -> None:
    import modal

    for number in numbers:
        if call := job.read(sweep / str(number)).get("job_id"):
            await modal.FunctionCall.from_id(call).cancel.aio(terminate_containers=terminate)
