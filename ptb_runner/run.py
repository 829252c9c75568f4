"""Run the Harbor trials of one cell: `run_cell(folder)` is the one function that does paid work.

It reads the folder, does only what is missing, and may be called again at any time by anyone who sees
the folder. Each trial is a Harbor trial under `job/`, named after its task and attempt; a trial that
was interrupted, or that failed for reasons of infrastructure, is moved aside and run again.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import functools
import logging
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ptb_runner import backend, harbor_job, keys, pointing, redact, serve, trial_folders
from ptb_runner import cell as cells
from ptb_runner.attend import attend
from ptb_runner.cell import Cell, read_json
from ptb_runner.clierrors import TRANSIENT
from ptb_runner.config import Kind
from ptb_runner.interrupts import Interrupts
from ptb_runner.judge import panel
from ptb_runner.outcome import Outcome, trial_record
from ptb_runner.progress import Progress, because
from ptb_runner.redact import Redactor
from ptb_runner.result import write_result
from ptb_runner.server import Server, ServerError
from ptb_runner.servers import Servers

if TYPE_CHECKING:
    from harbor.job_plan import JobPlan
    from harbor.models.trial.config import TrialConfig
    from harbor.trial.hooks import TrialHookEvent
    from harbor.trial.trial import Trial

log = logging.getLogger(__name__)


class FolderGone(Exception):
    """Somebody removed the cell's folder while it ran."""


def run_cell(folder: Path, show: Callable[[Progress], Any] | None = None) -> dict[str, Any]:
    """Run what is missing of the cell in `folder`, write result.json and return its content.

    `show` is called once with the live progress and returns a context manager for the time of the run.
    Raises UsageError when the folder cannot be run as it is. After SIGINT or SIGTERM the sandboxes are
    gone, the state is `cancelled`, and the result says so.
    """
    cell = cells.read_cell(folder.resolve())
    with cells.locked(cell.folder):
        cells.check_unchanged(cell)
        harbor_job.quiet_harbor()
        secrets = redact.redactor(cell)
        secrets.log_files()
        plan = harbor_job.planned(cell)
        try:
            return asyncio.run(_run_alone(cell, plan, secrets, show))
        finally:
            if not (cell.folder / "cell.yaml").exists():  # whatever came of it then, this is what matters
                raise FolderGone(f"{cell.folder}: was removed while the cell ran")


async def _run_alone(
    cell: Cell, plan: JobPlan, secrets: Redactor, show: Callable[[Progress], Any] | None
) -> dict[str, Any]:
    servers = Servers([cell], cell.folder)
    with Interrupts(backend.of(cell.config).kill_all).handled() as interrupts:
        reap(cell)
        async with servers.until_over(cell):
            return await run_trials(cell, secrets, interrupts, servers, show=show, plan=plan)


async def run_trials(
    cell: Cell,
    secrets: Redactor,
    interrupts: Interrupts,
    servers: Servers,
    show: Callable[[Progress], Any] | None = None,
    shared: asyncio.Semaphore | None = None,
    plan: JobPlan | None = None,
) -> dict[str, Any]:
    """Run what is missing of a cell that this process holds, and write and return its result."""
    started_at = cells.now()
    plan = plan or await harbor_job.plan(cell)
    names = [config.trial_name for config in plan.trial_configs]
    trial_folders.end_regrades(cell)
    trial_folders.set_aside_unfinished(cell, secrets)
    progress = Progress(len(names), server_gpu_hours=functools.partial(servers.gpu_hours, cell))
    for name in names:
        if record := trial_folders.finished(cell, name):
            progress.ran.add(name)
            if not trial_folders.judges_missing(cell, record):
                progress.count(record, cell.config)
    missing = [config for config in plan.trial_configs if config.trial_name not in progress.finished]
    harbor_job.write_job(cell, plan, secrets)
    run = functools.partial(
        _run_missing, cell, progress=progress, secrets=secrets, interrupts=interrupts, shared=shared
    )
    with show(progress) if show else contextlib.nullcontext():
        if serve.settings(cell.config) and any(config.trial_name not in progress.ran for config in missing):
            try:
                await _run_served(cell, missing, progress, interrupts, servers, run)
            finally:
                servers.leave(cell)
        else:
            await run(missing)
    if interrupts.seen:
        await backend.of(cell.config).all_ended()
        trial_folders.set_aside_killed(cell, [name for name in names if name not in progress.ran])
    harbor_job.write_job(cell, plan, secrets)
    result = write_result(cell, names, started_at)
    await trial_folders.settle_handoffs(cell, names, result["trials"])
    progress.write(cell, "cancelled" if interrupts.seen and len(progress.finished) < len(names) else "finished")
    return result


def reap(cell: Cell) -> None:
    """Remove what runners that were killed left behind, this cell's or another's."""
    for left in backend.of(cell.config).reap(cell.config):
        log.info("removed what a runner that is gone left: %s", left)


async def _run_missing(
    cell: Cell,
    missing: list[TrialConfig],
    progress: Progress,
    secrets: Redactor,
    interrupts: Interrupts,
    shared: asyncio.Semaphore | None,
    stop: asyncio.Event | None = None,
) -> None:
    """Run trials, `concurrency` of the cell at a time, and of all cells as many as `shared` allows; then judge them.

    When `stop` is set before they are over, they are cancelled.
    """
    slots = [asyncio.Semaphore(cell.config.concurrency), *([shared] if shared else [])]
    bench = asyncio.Semaphore(cell.config.judge.concurrency)
    work = [_run_and_judge(cell, config, progress, slots, bench, secrets, interrupts) for config in missing]
    tasks = [interrupts.start(one) for one in work]
    if not tasks:
        return
    progress.write(cell, "running")
    if stop:
        await _until_over(tasks, stop)
    await asyncio.wait(tasks)
    for task in tasks:
        if not task.cancelled() and (error := task.exception()):
            log.error("a trial ended in an error of the runner", exc_info=error)


async def _until_over(tasks: list[asyncio.Task[Any]], stop: asyncio.Event) -> None:
    """Wait for tasks, and cancel them when they are to stop."""
    stopping, pending = asyncio.create_task(stop.wait()), set(tasks)
    while pending and not stopping.done():
        over, _ = await asyncio.wait([*pending, stopping], return_when=asyncio.FIRST_COMPLETED)
        pending -= over
    stopping.cancel()
    for task in pending:
        task.cancel()


async def _run_served(
    cell: Cell,
    missing: list[TrialConfig],
    progress: Progress,
    interrupts: Interrupts,
    servers: Servers,
    run: Callable[..., Coroutine[Any, Any, None]],
) -> None:
    """Run trials against the cell's model server; those that its death has stopped run again on the next one."""
    while missing:
        for config in missing:
            progress.phase(config.trial_name, "model server")
        progress.write(cell, "running")
        starting = interrupts.start(servers.running(cell, progress.notify))
        await asyncio.wait([starting])
        progress.running.clear()
        if starting.cancelled():
            return
        if isinstance(error := starting.exception(), ServerError):
            await asyncio.to_thread(_give_up, cell, missing, error, progress)
            return
        server: Server = starting.result()
        await run([pointing.at_server(config, cell.config, server) for config in missing], stop=server.gone)
        if interrupts.seen or await server.outlived():
            return
        missing = await asyncio.to_thread(_take_back, cell, missing, progress, server)


def _take_back(cell: Cell, trials: list[TrialConfig], progress: Progress, server: Server) -> list[TrialConfig]:
    """The trials that a server's death has spoilt, their places cleared.

    An agent may have given up on a server that was failing already, and have been scored for that: only what it had
    finished by the time the server was last known to be well counts.
    """
    spoilt = []
    for config in trials:
        name = config.trial_name
        if trial_folders.finished(cell, name) and _agent_ended_before(cell.job / name, server):
            continue
        if (cell.job / name).exists():
            trial_folders.set_aside(cell, name)
        progress.finished.pop(name, None)
        progress.ran.discard(name)
        spoilt.append(config)
    return spoilt


def _agent_ended_before(trial_dir: Path, server: Server) -> bool:
    """Whether a trial's agent was done while the server was still well."""
    times = (read_json(trial_dir / "result.json") or {}).get("agent_execution") or {}
    try:
        ended = datetime.datetime.fromisoformat(times["finished_at"])
    except (KeyError, TypeError, ValueError):
        return False
    return ended.astimezone(datetime.UTC) <= server.well_at


def _give_up(cell: Cell, trials: list[TrialConfig], error: ServerError, progress: Progress) -> None:
    """Record trials that no model server is there for."""
    progress.notify(f"serve: {error}")
    log.error("%s", error)
    for config in trials:
        if trial_folders.finished(cell, config.trial_name) is None:
            trial_folders.record_failure(cell.job / config.trial_name, error)
            progress.ran.add(config.trial_name)
        progress.count(trial_folders.read(cell, config.trial_name), cell.config)


async def _run_and_judge(
    cell: Cell,
    config: TrialConfig,
    progress: Progress,
    slots: list[asyncio.Semaphore],
    bench: asyncio.Semaphore,
    secrets: Redactor,
    interrupts: Interrupts,
) -> None:
    """What is missing of one trial: its run, in the slots for sandboxes, and its judges, when it has left them."""
    name = config.trial_name
    if name not in progress.ran:
        async with contextlib.AsyncExitStack() as held:
            for slot in slots:
                await held.enter_async_context(slot)
            await _run_trial(cell, config, progress, secrets, interrupts)
        progress.ran.add(name)
        await trial_folders.settle_handoff(cell, name, trial_folders.read(cell, name))
    record = trial_folders.read(cell, name)
    if judges := trial_folders.judges_missing(cell, record):
        progress.phase(name, "judging")
        progress.write(cell, "running")
        await panel.judge_trial(cell, name, judges, secrets, bench)
        record = trial_folders.read(cell, name)
    progress.end(record, cell.config)
    progress.write(cell, "running")


async def _run_trial(
    cell: Cell, config: TrialConfig, progress: Progress, secrets: Redactor, interrupts: Interrupts
) -> None:
    """Run one trial, again after an infrastructure error as often as the configuration allows."""
    name, retry = config.trial_name, cell.config.retry

    def entered(phase: str) -> None:
        progress.phase(name, phase)
        progress.write(cell, "running")

    async def once() -> dict[str, Any]:
        progress.phase(name, "starting")
        try:
            return await run_once(cell, config, secrets, entered)
        finally:
            progress.running.pop(name, None)

    record = await once()
    for number in range(retry.infra_errors):
        if interrupts.seen or not _is_worth_repeating(record):
            break
        wait = retry.wait_sec * 2**number
        progress.notify(f"{name}: infra_error, again in {wait:g} s{because(record)}")
        progress.phase(name, "waiting")
        progress.write(cell, "running")
        await asyncio.sleep(wait)
        await asyncio.to_thread(trial_folders.set_aside, cell, name)
        record = await once()
    if interrupts.seen and record["outcome"] in trial_folders.BY_SIGNAL:
        raise asyncio.CancelledError  # Harbor took the cancellation for the trial's own error


def _is_worth_repeating(record: dict[str, Any]) -> bool:
    """Whether a trial failed for reasons that may be gone, before the agent had worked.

    Once it has, doing it all again is for the user to decide.
    """
    error = record["error"]
    if record["outcome"] != Outcome.infra_error or error["phase"] == "verifier":
        return False
    return error["phase"] != "agent" or (error["type"] in TRANSIENT and not record["tokens"]["output"])


async def run_once(
    cell: Cell, config: TrialConfig, secrets: Redactor, entered: Callable[[str], None]
) -> dict[str, Any]:
    """Run one Harbor trial where its configuration says, and tell which phase it has entered.

    Whatever it raises becomes the trial's recorded error, never another trial's.
    """
    from harbor.trial.trial import Trial

    name = config.trial_name
    folder = config.trials_dir / name
    try:
        if cell.config.benchmark.kind is Kind.post_train and not config.source_trial:  # else it is there already
            await asyncio.to_thread(backend.of(cell.config).make_handoff, cell, name)
        trial = await Trial.create(config.model_copy(deep=True))
        _follow(trial, secrets, entered)
        attend(trial, cell.config, secrets)
        await trial.run()
    except asyncio.CancelledError:
        raise
    except BaseException as error:
        # A constructor's error (a network policy that the backend cannot enforce, say) leaves no result. SystemExit
        # and KeyboardInterrupt are the agent's own, too: signals for us come through the loop's handlers.
        log.exception("trial %s", name)
        trial_folders.record_failure(folder, error)
    finally:
        secrets.learn(keys.secrets(cell.config))
        for left in (folder, cell.handoff / name):  # in a thread: a snapshot can be large
            await asyncio.to_thread(secrets.folder, left)
    return trial_record(folder, trial_folders.attempt(name))


def _follow(trial: Trial, secrets: Redactor, entered: Callable[[str], None]) -> None:
    """Have a trial tell its phases."""
    from harbor.trial.hooks import TrialEvent

    phases = {
        TrialEvent.START: "starting",
        TrialEvent.ENVIRONMENT_START: "sandbox",
        TrialEvent.AGENT_START: "agent",
        TrialEvent.AGENT_END: "collecting",
        TrialEvent.VERIFICATION_START: "verifier",
    }
    for event, phase in phases.items():

        async def tell(_: TrialHookEvent, phase: str = phase) -> None:
            if phase == "starting":
                secrets.folder(trial.paths.trial_dir)  # Harbor has just written its configuration, arguments and all
            entered(phase)

        trial.add_hook(event, tell)
