"""Run the Harbor trials of one cell: `run_cell(folder)` is the one function that does paid work.

It reads the folder, does only what is missing, and may be called again at any time by anyone who sees
the folder. Each trial is a Harbor trial under `job/`, named after its task and attempt; a trial that
was interrupted, or that failed for reasons of infrastructure, is moved aside and run again.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import datetime
import functools
import hashlib
import logging
import os
import re
import signal
import time
import traceback
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ptb_runner import backend, keys, provenance, redact, serve
from ptb_runner import cell as cells
from ptb_runner.agent import clis
from ptb_runner.attend import attend
from ptb_runner.cell import Cell, read_json, write_json, write_status
from ptb_runner.clierrors import TRANSIENT
from ptb_runner.config import Config, KeepModel, Kind
from ptb_runner.contained import contain
from ptb_runner.explain import UsageError
from ptb_runner.judge import judgements, panel
from ptb_runner.outcome import JUDGED, SCORED, Outcome, score, trial_record, worst
from ptb_runner.redact import Redactor
from ptb_runner.render import agent_hours, verifier_hours
from ptb_runner.server import Server, ServerError
from ptb_runner.servers import Servers

if TYPE_CHECKING:
    from harbor.job_plan import JobPlan
    from harbor.models.job.config import JobConfig
    from harbor.models.trial.config import TrialConfig
    from harbor.trial.hooks import TrialHookEvent
    from harbor.trial.trial import Trial

log = logging.getLogger(__name__)

# Sandboxes that are still there this long after an interrupt are killed without asking their programs.
INTERRUPT_GRACE_SEC = 1.0
# Options of a benchmark that stand for those of a task that is run as it is.
RESOURCES = ("cpus", "memory_mb", "storage_mb", "gpus")
# What a trial may seem to have ended with when it died of a signal.
_BY_SIGNAL = (Outcome.infra_error, Outcome.eval_failed)


class FolderGone(Exception):
    """Somebody removed the cell's folder while it ran."""


@dataclass
class Progress:
    """What a cell's trials are doing right now; read by the display, written by the run."""

    expected: int
    finished: dict[str, str] = field(default_factory=dict)
    running: dict[str, tuple[str, float]] = field(default_factory=dict)
    ran: set[str] = field(default_factory=set)  # what is left of these is for judges
    gpu_hours: float = 0.0
    usd: float = 0.0
    trial_sec: float = 0.0
    last_error: str | None = None
    notify: Callable[[str], None] = lambda line: None

    def phase(self, trial: str, phase: str) -> None:
        """A trial has entered a phase."""
        self.running[trial] = (phase, time.time())

    def end(self, record: dict[str, Any], config: Config) -> None:
        """A trial is over."""
        self.count(record, config)
        self.notify(f"{record['name']}: {record['outcome']}{_detail(record)}")

    def count(self, record: dict[str, Any], config: Config) -> None:
        """Add a finished trial to what is shown: its outcome, what it cost, its error."""
        self.running.pop(record["name"], None)
        self.finished[record["name"]] = record["outcome"]
        hours, usd = spent(record, config)
        self.gpu_hours += hours
        self.usd += usd
        self.trial_sec += record["durations_sec"]["total"] or 0.0
        if record["error"]:
            self.last_error = f"{record['name']}{_because(record)}"


def run_cell(folder: Path, show: Callable[[Progress], Any] | None = None) -> dict[str, Any]:
    """Run what is missing of the cell in `folder`, write result.json and return its content.

    `show` is called once with the live progress and returns a context manager for the time of the run.
    Raises UsageError when the folder cannot be run as it is. After SIGINT or SIGTERM the sandboxes are
    gone, the state is `cancelled`, and the result says so.
    """
    cell = cells.read_cell(folder.resolve())
    with cells.locked(cell.folder):
        cells.check_unchanged(cell)
        quiet_harbor()
        secrets = redact.redactor(cell)
        secrets.log_files()
        plan = _planned(cell)
        try:
            return asyncio.run(_run_alone(cell, plan, secrets, show))
        finally:
            if not (cell.folder / "cell.yaml").exists():  # whatever came of it then, this is what matters
                raise FolderGone(f"{cell.folder}: was removed while the cell ran")


def quiet_harbor() -> None:
    """Keep Harbor off the network and the console. Its exit otherwise takes 14 s and reports to a third party."""
    os.environ["HARBOR_TELEMETRY"] = "0"
    os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
    logging.getLogger("harbor").setLevel(logging.INFO)
    for chatty in ("httpx", "httpx2"):  # a line for each request of a judge
        logging.getLogger(chatty).setLevel(logging.WARNING)


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
    plan = plan or await _plan(cell)
    names = [config.trial_name for config in plan.trial_configs]
    _set_aside_unfinished(cell, secrets)
    progress = Progress(expected=len(names))
    for name in names:
        if record := _finished(cell, name):
            progress.ran.add(name)
            if not _judges_missing(cell, record):
                progress.count(record, cell.config)
    missing = [config for config in plan.trial_configs if config.trial_name not in progress.finished]
    _write_job(cell, plan, secrets)
    run = functools.partial(
        _run_missing, cell, progress=progress, secrets=secrets, interrupts=interrupts, shared=shared
    )
    with show(progress) if show else contextlib.nullcontext():
        if serve.settings(cell.config) and any(config.trial_name not in progress.ran for config in missing):
            await _run_served(cell, missing, progress, interrupts, servers, run)
        else:
            await run(missing)
    if interrupts.seen:
        await backend.of(cell.config).all_ended()
        _set_aside_killed(cell, [name for name in names if name not in progress.ran])
    _write_job(cell, plan, secrets)
    result = write_result(cell, names, started_at)
    await _settle_handoffs(cell, names, result["trials"])
    _report(cell, progress, "cancelled" if interrupts.seen and len(progress.finished) < len(names) else "finished")
    return result


def reap(cell: Cell) -> None:
    """Remove what runners that were killed left behind, this cell's or another's."""
    for left in backend.of(cell.config).reap(cell.config):
        log.info("removed what a runner that is gone left: %s", left)


# --- Harbor's configuration -------------------------------------------------------------------------


def _planned(cell: Cell) -> JobPlan:
    """The plan, outside of the loop that handles signals: of many attempts it takes long, and Ctrl-C must end it."""
    loop = asyncio.new_event_loop()
    try:
        return loop.run_until_complete(_plan(cell))
    finally:
        loop.close()


async def trial_configs(cell: Cell) -> list[TrialConfig]:
    """Harbor's configuration of each trial of a cell, as a run would start it."""
    return (await _plan(cell)).trial_configs


async def _plan(cell: Cell) -> JobPlan:
    """Harbor's plan of the job, with trials named by us and a hand-off folder each."""
    from harbor.job_plan import JobPlan
    from harbor.models.job.lock import build_job_lock
    from harbor.models.trial.config import EnvironmentConfig

    config = _job_config(cell)
    # Harbor plans one attempt, in a thread that no signal ends; the others are the same but for the name.
    plan = await JobPlan.from_config(config.model_copy(update={"n_attempts": 1}), job_id=_job_id(cell))
    plan.config = config
    trials, attempts, short = [], Counter[Path](), _short_names(cell)
    for trial in plan.trial_configs * config.n_attempts:
        folder = trial.task.path
        assert folder is not None
        attempts[folder] += 1
        own: dict[str, Any] = {"trial_name": f"{short[folder]}__{attempts[folder]:03d}"}
        if len(short) > 1:  # compose tasks of a dataset need another environment than the rest
            own["environment"] = EnvironmentConfig.model_validate(_environment(cell, folder))
        trials.append(_with_handoff(cell, trial.model_copy(update=own, deep=True)))
    plan.trial_configs = trials
    plan.job_lock = build_job_lock(
        config=config, trial_configs=trials, task_download_results=plan.task_download_results
    )
    return plan


def _short_names(cell: Cell) -> dict[Path, str]:
    """What trials are named after, by task folder: a dataset's task, else the benchmark; fit for a folder."""
    own = cell.config.benchmark
    if cell.tasks == [cell.task]:
        return {cell.task: _short(Path(own.path).resolve().name if own.path else own.id)}
    names: dict[Path, str] = {}
    for folder in cell.tasks:
        name = _short(folder.name)
        digest = hashlib.sha256(folder.name.encode()).hexdigest()[:6]
        names[folder] = f"{name[:33]}-{digest}" if name in names.values() else name
    return names


def _short(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.")[:40] or "task"


def _job_id(cell: Cell) -> Any:
    """The id of the job that is already there, so that a resumed job stays the same job."""
    from uuid import UUID, uuid4

    known = read_json(cell.job / "result.json")
    return UUID(known["id"]) if isinstance(known, dict) and "id" in known else uuid4()


def _job_config(cell: Cell) -> JobConfig:
    from harbor.models.job.config import JobConfig

    config = cell.config
    return JobConfig.model_validate(
        {
            "job_name": "job",
            "jobs_dir": cell.folder,
            "n_attempts": config.attempts,
            "n_concurrent_trials": config.concurrency,
            "quiet": True,
            "environment": _environment(cell, cell.tasks[0]),
            "agents": [agent_fields(config)],
            "verifier": _verifier(config),
            "tasks": [{"path": task, "source": config.benchmark.id} for task in cell.tasks],
            **_multipliers(config),
        }
    )


def _multipliers(config: Config) -> dict[str, float | None]:
    limits = config.benchmark.limits
    return {
        "timeout_multiplier": limits.multiplier,
        "agent_timeout_multiplier": 1.0 if limits.agent_sec else limits.agent_multiplier,
        "verifier_timeout_multiplier": 1.0 if limits.verifier_sec else limits.verifier_multiplier,
        "agent_setup_timeout_multiplier": limits.agent_setup_multiplier,
        "environment_build_timeout_multiplier": limits.build_multiplier,
    }


def _environment(cell: Cell, task: Path) -> dict[str, Any]:
    own = cell.config.benchmark
    environment = backend.of(cell.config).environment(cell.config, task)
    if not own.layers:  # a rendered task says it itself
        environment |= {f"override_{name}": value for name in RESOURCES if (value := getattr(own, name))}
    if own.layers and (cell.task / "tools").is_dir():
        # Programs that run beside the agent but are not the agent's to change.
        tools = {"type": "bind", "source": str(cell.task / "tools"), "target": "/opt/ptb", "read_only": True}
        environment["mounts"] = [tools]
    return environment


def agent_fields(config: Config) -> dict[str, Any]:
    """The agent as Harbor's AgentConfig has it."""
    agent = config.agent
    hours = agent_hours(config)
    own: dict[str, Any] = {
        "name": agent.name if agent.name not in clis.CLASSES else None,
        "import_path": clis.CLASSES.get(agent.name or "", agent.import_path),
        "model_name": serve.agent_model(config),
        **clis.endpoint(agent),
        "override_timeout_sec": hours * 3600 if hours is not None else None,
        # Without a version Harbor takes the image's CLI, or installs the newest.
        "kwargs": dict(agent.options)
        | ({"version": agent.version} if agent.version not in (None, "latest") else {})
        | ({"login_file": str(file)} if (file := keys.login_file(agent)) else {})
        | _reprompt(config),
        # Harbor resolves ${NAME} on the host when the trial starts; the value is in no file.
        "env": dict(agent.env) | {name: f"${{{name}}}" for name in keys.of_agent(agent)},
    }
    return own


def _reprompt(config: Config) -> dict[str, Any]:
    wanted, hours = config.agent.reprompt, agent_hours(config)
    if wanted.min_remaining_min is None or hours is None:
        return {}
    return {"reprompt": {"budget_sec": hours * 3600, **dataclasses.asdict(wanted)}}


def _verifier(config: Config) -> dict[str, Any]:
    hours = verifier_hours(config)
    return {
        "override_timeout_sec": hours * 3600 if hours is not None else None,
        "env": {name: f"${{{name}}}" for name in config.benchmark.verifier_env_vars},
    }


def _with_handoff(cell: Cell, trial: TrialConfig) -> TrialConfig:
    if cell.config.benchmark.kind is Kind.post_train:
        trial.environment.kwargs["handoff"] = backend.of(cell.config).handoff(cell, trial.trial_name)
    return trial


# --- Trials -----------------------------------------------------------------------------------------


def _finished(cell: Cell, name: str) -> dict[str, Any] | None:
    """The record of a trial that need not run again; None when it is missing or was interrupted."""
    folder = cell.job / name
    if read_json(folder / "result.json") is None:
        return None
    record = _record(cell, name)
    return None if record["outcome"] == Outcome.cancelled else record


def _record(cell: Cell, name: str) -> dict[str, Any]:
    return trial_record(cell.job / name, _attempt(name))


def _judges_missing(cell: Cell, record: dict[str, Any]) -> list[str]:
    """Which of the cell's judges have still to judge a trial that is over."""
    unjudged = (Outcome.judge_missing, Outcome.flagged)  # what the verifier had said of them counts
    if record["outcome"] not in (*JUDGED, *unjudged):
        return []
    return judgements.missing(cell.job / record["name"], cell.config.judge.panel)


def _attempt(name: str) -> int:
    return int(name.rpartition("__")[2])


def _set_aside_unfinished(cell: Cell, secrets: Redactor) -> None:
    """Move away what an interrupted or killed runner left half done."""
    for folder in sorted(cell.job.glob("*__*")):
        if folder.is_dir() and _finished(cell, folder.name) is None:
            secrets.folder(folder)
            set_aside(cell, folder.name)


def _set_aside_killed(cell: Cell, cancelled: list[str]) -> None:
    """Clear the place of trials that were cancelled, but by then had failed: of the signal itself.

    Slurm sends it to every process of a job, a terminal to every one in front: a sandbox may die of it before we
    hear of it ourselves, and Harbor files that as the trial's error.
    """
    for name in cancelled:
        record = _finished(cell, name)
        if record and record["outcome"] in _BY_SIGNAL:
            set_aside(cell, name)


def supersede(cell: Cell, name: str) -> Path:
    """Move a trial's folder to superseded/, with a number, and return where it is."""
    cell.superseded.mkdir(exist_ok=True)
    taken = [int(path.suffix[1:]) for path in cell.superseded.glob(f"{name}.*") if path.suffix[1:].isdecimal()]
    return (cell.job / name).rename(cell.superseded / f"{name}.{max(taken, default=0) + 1}")


def set_aside(cell: Cell, name: str) -> None:
    """Keep an earlier try of a trial under superseded/, and clear its place."""
    supersede(cell, name)
    backend.of(cell.config).settle_handoff(cell, name, keep=False)


def set_aside_outcomes(cell: Cell, outcomes: list[str]) -> None:
    """Clear the place of every trial that ended in one of `outcomes`, so that the next run does it again."""
    cells.check_unchanged(cell)
    chosen = []
    for folder in sorted(cell.job.glob("*__*")):
        record = _finished(cell, folder.name)
        if record and record["outcome"] in outcomes:
            set_aside(cell, folder.name)
            chosen.append(folder.name)
    if chosen:
        cells.mark(cell, "planned", None, fewer=len(chosen))


def _signals() -> list[signal.Signals]:
    """What interrupts: Ctrl-C, SIGTERM, and the end of the terminal unless it is ignored (nohup)."""
    hangs_up = [] if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else [signal.SIGHUP]
    return [signal.SIGINT, signal.SIGTERM, *hangs_up]


class Interrupts:
    """What SIGINT, SIGTERM and SIGHUP do to the trials of this process.

    The first one cancels every trial, keeps others from starting, and soon after kills what sandboxes are left;
    further ones change nothing.
    """

    def __init__(self, kill: Callable[[], None]) -> None:
        self.seen = False
        self._kill = kill
        self._tasks: set[asyncio.Task[Any]] = set()

    def start(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Start work that an interrupt cancels."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        if self.seen:
            task.cancel()
        return task

    @contextlib.contextmanager
    def handled(self) -> Iterator[Interrupts]:
        """Handle the signals for as long as this lasts; must be entered in the loop of the main thread."""
        loop = asyncio.get_running_loop()
        contain(loop)
        for number in _signals():
            loop.add_signal_handler(number, self._interrupt, number)
        try:
            yield self
        finally:
            for number in _signals():
                loop.remove_signal_handler(number)

    def _interrupt(self, number: int) -> None:
        if self.seen:
            return
        self.seen = True
        log.warning("signal %s: cancelling %d trials", number, len(self._tasks))
        for task in list(self._tasks):
            task.cancel()
        asyncio.get_running_loop().call_later(INTERRUPT_GRACE_SEC, self._kill)


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
    _report(cell, progress, "running")
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
        _report(cell, progress, "running")
        starting = interrupts.start(servers.running(cell, progress.notify))
        await asyncio.wait([starting])
        progress.running.clear()
        if starting.cancelled():
            return
        if isinstance(error := starting.exception(), ServerError):
            await asyncio.to_thread(_give_up, cell, missing, error, progress)
            return
        server: Server = starting.result()
        await run([serve.pointed(config, cell.config, server) for config in missing], stop=server.gone)
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
        if _finished(cell, name) and _agent_ended_before(cell.job / name, server):
            continue
        if (cell.job / name).exists():
            set_aside(cell, name)
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
        if _finished(cell, config.trial_name) is None:
            _record_failure(cell.job / config.trial_name, error)
            progress.ran.add(config.trial_name)
        progress.count(_record(cell, config.trial_name), cell.config)


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
        await _settle_handoff(cell, name, _record(cell, name))
    record = _record(cell, name)
    if judges := _judges_missing(cell, record):
        progress.phase(name, "judging")
        _report(cell, progress, "running")
        await panel.judge_trial(cell, name, judges, secrets, bench)
        record = _record(cell, name)
    progress.end(record, cell.config)
    _report(cell, progress, "running")


async def _run_trial(
    cell: Cell, config: TrialConfig, progress: Progress, secrets: Redactor, interrupts: Interrupts
) -> None:
    """Run one trial, again after an infrastructure error as often as the configuration allows."""
    name, retry = config.trial_name, cell.config.retry
    record = await run_once(cell, config, progress, secrets)
    for number in range(retry.infra_errors):
        if interrupts.seen or not _is_worth_repeating(record):
            break
        wait = retry.wait_sec * 2**number
        progress.notify(f"{name}: infra_error, again in {wait:g} s{_because(record)}")
        progress.phase(name, "waiting")
        _report(cell, progress, "running")
        await asyncio.sleep(wait)
        await asyncio.to_thread(set_aside, cell, name)
        record = await run_once(cell, config, progress, secrets)
    if interrupts.seen and record["outcome"] in _BY_SIGNAL:
        raise asyncio.CancelledError  # Harbor took the cancellation for the trial's own error


def _is_worth_repeating(record: dict[str, Any]) -> bool:
    """Whether a trial failed for reasons that may be gone, before the agent had worked.

    Once it has, doing it all again is for the user to decide.
    """
    error = record["error"]
    if record["outcome"] != Outcome.infra_error or error["phase"] == "verifier":
        return False
    return error["phase"] != "agent" or (error["type"] in TRANSIENT and not record["tokens"]["output"])


def spent(record: dict[str, Any], config: Config) -> tuple[float, float]:
    """What a trial has cost so far: GPU-hours, and dollars for its LLM, its judges and those GPUs."""
    times = record["durations_sec"]
    hours = config.benchmark.gpus * sum(times[phase] or 0.0 for phase in ("environment", "agent", "verifier")) / 3600
    llms = (record["cost_usd"] or 0.0) + (record["judge_cost_usd"] or 0.0)
    return hours, llms + hours * config.backend.usd_per_gpu_hour


def _detail(record: dict[str, Any]) -> str:
    reward = "" if record["reward"] is None else f" (reward {record['reward']:g})"
    return f"{reward}{_because(record)}"


def _because(record: dict[str, Any]) -> str:
    error = record["error"]
    first = error["message"].strip().splitlines()[:1] if error else []
    return f": {error['type']}: {first[0][:200]}" if error and first else ""


async def run_once(cell: Cell, config: TrialConfig, progress: Progress, secrets: Redactor) -> dict[str, Any]:
    """Run one Harbor trial; whatever it raises becomes the trial's recorded error, never another trial's."""
    from harbor.trial.trial import Trial

    name = config.trial_name
    folder = cell.job / name
    progress.phase(name, "starting")
    try:
        if cell.config.benchmark.kind is Kind.post_train:
            await asyncio.to_thread(backend.of(cell.config).make_handoff, cell, name)
        trial = await Trial.create(config.model_copy(deep=True))
        _follow(trial, cell, progress, secrets)
        attend(trial, cell.config, secrets)
        await trial.run()
    except asyncio.CancelledError:
        raise
    except BaseException as error:
        # A constructor's error (a network policy that the backend cannot enforce, say) leaves no result. SystemExit
        # and KeyboardInterrupt are the agent's own, too: signals for us come through the loop's handlers.
        log.exception("trial %s", name)
        _record_failure(folder, error)
    finally:
        progress.running.pop(name, None)
        secrets.learn(keys.secrets(cell.config))
        for left in (folder, cell.handoff / name):  # in a thread: a snapshot can be large
            await asyncio.to_thread(secrets.folder, left)
    return _record(cell, name)


def _follow(trial: Trial, cell: Cell, progress: Progress, secrets: Redactor) -> None:
    """Have a trial tell its phases, to the display and to status.json."""
    from harbor.trial.hooks import TrialEvent

    name = trial.config.trial_name
    phases = {
        TrialEvent.START: "starting",
        TrialEvent.ENVIRONMENT_START: "sandbox",
        TrialEvent.AGENT_START: "agent",
        TrialEvent.AGENT_END: "collecting",
        TrialEvent.VERIFICATION_START: "verifier",
    }
    for event, phase in phases.items():

        async def entered(_: TrialHookEvent, phase: str = phase) -> None:
            if phase == "starting":
                secrets.folder(cell.job / name)  # Harbor has just written its configuration, arguments and all
            progress.phase(name, phase)
            _report(cell, progress, "running")

        trial.add_hook(event, entered)


def _record_failure(trial_dir: Path, error: BaseException) -> None:
    """Leave the reason where `trial_record` finds it, for a trial that Harbor could not begin or did not see fail."""
    path = trial_dir / "result.json"
    found = read_json(path)
    result: dict[str, Any] = found if isinstance(found, dict) else {"trial_name": trial_dir.name}
    if result.get("exception_info"):
        return
    result["exception_info"] = {
        "exception_type": type(error).__name__,
        "exception_message": str(error) or repr(error),
        "exception_traceback": "".join(traceback.format_exception(error)),
        "occurred_at": cells.now(),
    }
    trial_dir.mkdir(parents=True, exist_ok=True)
    write_json(path, result)


# --- What is left behind ----------------------------------------------------------------------------


def _write_job(cell: Cell, plan: JobPlan, secrets: Redactor) -> None:
    """Harbor's own files of the job, from its own models, so that its readers and viewer accept the folder."""
    from harbor.models.trial.result import TrialResult
    from pydantic import ValidationError

    cell.job.mkdir(exist_ok=True)
    results = []
    for config in plan.trial_configs:
        try:
            results.append(TrialResult.model_validate_json((cell.job / config.trial_name / "result.json").read_text()))
        except (OSError, ValidationError):
            continue  # not there yet, or never begun: Harbor has no form for it
    job = plan.aggregate(results, n_total_trials=len(plan.trial_configs))
    if len(results) < len(plan.trial_configs):
        job.finished_at = None
    (cell.job / "config.json").write_text(secrets.text(plan.config.model_dump_json(indent=4)))
    (cell.job / "lock.json").write_text(secrets.text(plan.job_lock.model_dump_json(indent=4, exclude_none=True)))
    (cell.job / "result.json").write_text(job.model_dump_json(indent=4, exclude={"trial_results"}))


def write_result(cell: Cell, names: list[str], started_at: str) -> dict[str, Any]:
    """Write result.json from the trials' folders; it holds one record for each trial that was begun."""
    config = cell.config
    trials = [_record(cell, name) for name in names if (cell.job / name).is_dir()]
    before = read_json(cell.folder / "result.json") or {}
    result = {
        "schema_version": cells.SCHEMA_VERSION,
        "cell_id": cell.id,
        "benchmark": config.benchmark.id,
        "model": config.model.id,
        "agent": config.agent.id,
        "backend": config.backend.kind,
        "tasks": list(dict.fromkeys(name.rpartition("__")[0] for name in names)),
        "attempts": config.attempts,
        "pass_reward": config.benchmark.pass_reward,
        "max_error_rate": config.report.max_error_rate,
        "trials": trials,
        "score": score(trials, len(names), config.benchmark, config.model.id),
        "started_at": before.get("started_at", started_at),
        "finished_at": cells.now(),
        "provenance": provenance.provenance(cell, trials),
    }
    write_json(cell.folder / "result.json", result)
    return result


def rescore(cell: Cell) -> dict[str, Any]:
    """Write the cell's result anew from its trials' folders, after judges, reviewers or a verifier had their say.

    Raises UsageError when there is no result yet.
    """
    path = cell.folder / "result.json"
    before, state = read_json(path), read_json(cell.folder / "status.json")
    if not isinstance(before, dict) or not isinstance(state, dict):
        raise UsageError(f"{cell.folder}: has no result yet\n  ptb resume {cell.folder}")
    trials = [_record(cell, trial["name"]) for trial in before["trials"]]
    final = score(trials, before["score"]["n_expected"], cell.config.benchmark, cell.config.model.id)
    result = before | {"trials": trials, "score": final, "rescored_at": cells.now()}
    write_json(path, result)
    outcomes = [trial["outcome"] for trial in trials]
    last = next((trial for trial in reversed(trials) if trial["error"]), None)
    usd = sum(spent(trial, cell.config)[1] for trial in trials)
    state |= {"outcome": worst(outcomes), "error": f"{last['name']}{_because(last)}" if last else None}
    state["attempts"] |= {"by_outcome": dict(Counter(outcomes))}
    state["spent"] |= {"usd": round(usd, 6)}
    write_json(cell.folder / "status.json", state | {"launcher": cells.owner(cell), "updated_at": cells.now()})
    return result


async def _settle_handoffs(cell: Cell, names: list[str], trials: list[dict[str, Any]]) -> None:
    """Keep or remove what is still unsettled: hand-offs of trials that were interrupted, or that another run left."""
    records = {trial["name"]: trial for trial in trials}
    await asyncio.gather(*(_settle_handoff(cell, name, records.get(name)) for name in names))
    for folder in (*cell.handoff.glob("*"), cell.handoff):
        if folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()


async def _settle_handoff(cell: Cell, name: str, record: dict[str, Any] | None) -> None:
    """Keep or remove a trial's hand-off by the policy, now that its result is safe."""
    if cell.config.benchmark.kind is not Kind.post_train:
        return
    keep = record is not None and _is_kept(record, cell.config.backend.keep_model)
    try:
        await asyncio.to_thread(backend.of(cell.config).settle_handoff, cell, name, keep)
    except Exception:
        log.exception("the hand-off of %s could be neither kept nor removed", name)


def _is_kept(record: dict[str, Any], policy: KeepModel) -> bool:
    """Whether a model stays. That of a verification that failed always does: it can be scored again."""
    outcome = record["outcome"]
    if outcome == Outcome.cancelled:
        return False  # the trial will be run again
    unverified = outcome == Outcome.infra_error and record["error"]["phase"] == "verifier"
    if policy is KeepModel.always or unverified or outcome == Outcome.eval_failed:
        return True
    verified = (*SCORED, Outcome.flagged, Outcome.judge_missing)  # judges may change their minds
    return policy is KeepModel.scored and outcome in verified


def _report(cell: Cell, progress: Progress, state: str) -> None:
    counts: dict[str, int] = {}
    for outcome in progress.finished.values():
        counts[outcome] = counts.get(outcome, 0) + 1
    attempts = {
        "expected": progress.expected,
        "finished": len(progress.finished),
        "running": {name: phase for name, (phase, _) in progress.running.items()},
        "by_outcome": counts,
    }
    outcome = Outcome.cancelled if state == "cancelled" else worst(list(progress.finished.values()))
    write_status(
        cell,
        state,
        str(outcome) if outcome else None,
        attempts,
        since={name: since for name, (_, since) in progress.running.items()},
        spent={
            "gpu_hours": round(progress.gpu_hours, 6),
            "usd": round(progress.usd, 6),
            "trial_sec": round(progress.trial_sec, 3),
        },
        error=progress.last_error,
    )
