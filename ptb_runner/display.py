"""What a person sees: the plan, the progress of a run, and the closing table."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.table import Table

from ptb_runner import backend, hf_cache, serve
from ptb_runner.budget import factor
from ptb_runner.cell import Cell, read_json
from ptb_runner.config import Config, Kind
from ptb_runner.judge import codex, codex_program
from ptb_runner.launch import beaker_spec
from ptb_runner.outcome import SCORED, Outcome
from ptb_runner.plan import Plan
from ptb_runner.progress import Progress
from ptb_runner.terminal import shown
from ptb_runner.times import clock, duration

if TYPE_CHECKING:
    from ptb_runner.results.collect import Collected
    from ptb_runner.watch import CellState

ROWS = 40  # cells that a table lists
SHOWN = 16  # trials that the live view lists; the rest is counted
_PHASES = ("model server", "waiting", "starting", "sandbox", "agent", "collecting", "verifier", "judging")


def print_plan(plan: Plan, refusals: list[str], out: Console) -> None:
    """The plan of one cell, as `dry_run=true` prints it, and why it could not be launched."""
    config = plan.cell.config
    table = Table("", "", title=f"Plan: cell {plan.cell.id}", show_header=False, title_justify="left")
    none = "the task's own"
    rows = {
        "benchmark": f"{config.benchmark.id} ({config.benchmark.kind.name})",
        "model": config.model.id,
        "agent": " ".join(filter(None, (config.agent.id, serve.agent_model(config), config.agent.version))),
        "served": serve.describe(config),
        "backend": f"{config.backend.kind}, launcher {config.launcher.kind}",
        "budget, content": f"{config.budget.id}, {config.content.kind.name}",
        "trials": f"{plan.n_trials}, at most {plan.sandboxes_at_once} at once",
        "sandboxes": "one for the agent, then one for the verifier, of each trial",
        "agent's limit": _limit(plan.agent_hours, factor(config, "agent")),
        "verifier's limit": _limit(plan.verifier_hours, factor(config, "verifier")),
        "network": config.benchmark.network.name if config.benchmark.layers else none,
        "judges": _judges(config) or "none",
        "keys": ", ".join(f"{name} ({_found(ok)})" for name, ok in plan.keys.items()) or "none needed",
        "hub cache": hf_cache.describe(config),
        "cost ceiling": f"{plan.gpu_hours:g} GPU-hours{_server_gpus([plan])}",
        "task": str(plan.cell.task),
    }
    for name, value in rows.items():
        table.add_row(name, escape(value))
    out.print(table)
    for warning in plan.warnings:
        out.print(f"note: {warning}", markup=False)
    for refusal in refusals:
        out.print(f"not ready: {refusal}", markup=False)


@contextlib.contextmanager
def progress(state: Progress, interval_sec: float, out: Console) -> Iterator[None]:
    """Show a run while it runs: a live table on a terminal, lines every `interval_sec` elsewhere."""
    if out.is_terminal:
        with Live(get_renderable=lambda: _live(state), console=out, refresh_per_second=4, transient=True) as live:
            state.notify = lambda line: live.console.print(line, markup=False)
            yield
        return
    state.notify = lambda line: out.print(line, markup=False)
    over = threading.Event()
    ticker = threading.Thread(target=_tick, args=(state, interval_sec, out, over), daemon=True)
    ticker.start()
    try:
        yield
    finally:
        over.set()
        ticker.join()


def _tick(state: Progress, interval_sec: float, out: Console, over: threading.Event) -> None:
    while not over.wait(interval_sec):
        out.print(_line(state), markup=False)


def _line(state: Progress) -> str:
    """All trials in a line; each running one with phase and time while they are few."""
    running = dict(state.running)
    ended = ", ".join(f"{count} {outcome}" for outcome, count in Counter(state.finished.values()).items())
    text = f"{len(state.finished)}/{state.expected} trials over" + (f" ({ended})" if ended else "")
    if len(running) <= 4:
        each = [f"{name} {phase} {_elapsed(since)}" for name, (phase, since) in running.items()]
        return "; ".join([text, *each])
    phases = Counter(phase for phase, _ in running.values())
    return f"{text}; {', '.join(f'{phases[phase]} {phase}' for phase in _PHASES if phases[phase])}"


def _live(state: Progress) -> Table:
    table = Table.grid(padding=(0, 2))
    running = sorted(dict(state.running).items())
    for name, (phase, since) in running[:SHOWN]:
        table.add_row(escape(name), phase, _elapsed(since))
    if len(running) > SHOWN:
        table.add_row(f"and {len(running) - SHOWN} more", "", "")
    table.add_row(f"{len(state.finished)}/{state.expected} trials over", "", "")
    return table


def _elapsed(since: float) -> str:
    return clock(time.time() - since)


def print_result(result: dict[str, Any], cell: Cell, folder: Path, out: Console) -> None:
    """The closing table of one cell, and what to type next; `folder` is the cell's as the user would type it."""
    table = Table(title=f"{result['benchmark']} x {result['model']} x {result['agent']}", title_justify="left")
    for name, justify in (("trial", "left"), ("outcome", "left"), ("reward", "right"), ("sandbox", "right")):
        table.add_column(name, justify=justify)  # type: ignore[arg-type]
    for name in ("agent", "verifier", "total"):
        table.add_column(name, justify="right")
    for trial in result["trials"][:50]:
        spent = trial["durations_sec"]
        times = [clock(spent[key]) for key in ("environment", "agent", "verifier", "total")]
        table.add_row(escape(trial["name"]), trial["outcome"], _number(trial["reward"]), *times)
    out.print(table)
    if len(result["trials"]) > 50:
        out.print(f"and {len(result['trials']) - 50} more trials in {folder / 'result.json'}", markup=False)
    for line in _closing_lines(result, cell, folder):
        out.print(line, markup=False)


def _closing_lines(result: dict[str, Any], cell: Cell, folder: Path) -> Iterator[str]:
    score, trials, benchmark = result["score"], result["trials"], cell.config.benchmark
    for trial in [trial for trial in trials if trial["error"] and trial["outcome"] != Outcome.cancelled][:5]:
        yield f"{trial['name']}: {trial['error']['type']}: {trial['error']['message'].strip()[:300]}"
    if benchmark.kind is Kind.harbor:
        passed = sum(trial["outcome"] in SCORED and trial["reward"] >= benchmark.pass_reward for trial in trials)
        yield f"{passed}/{score['n_expected']} trials passed"
    yield score_line(score)
    if not result["provenance"]["comparable"]:
        yield f"not comparable: {'; '.join(result['provenance']['not_comparable_because'])}"
    if any((cell.handoff / trial["name"] / "final_model").is_dir() for trial in trials):
        yield f"models: {folder / 'handoff'}/*/final_model"
    fetch = backend.of(cell.config).fetch_commands(cell)
    yield from (f"model kept elsewhere, to fetch it: {command}" for command in fetch[:5])
    if len(fetch) > 5:
        yield f"and {len(fetch) - 5} more: the commands are in {folder / 'handoff'}/*/volume.json"
    yield f"result: {folder / 'result.json'}"
    yield f"next: {next_command(result, folder)}"


def score_line(score: dict[str, Any]) -> str:
    """A cell's score in a line, with where it comes from and its coverage."""
    source = f" ({score['final_source'].replace('_', ' ')})" if score["final_source"] else ""
    waiting = score.get("awaits_review")
    review = f"; {waiting} {'trial awaits' if waiting == 1 else 'trials await'} a review" if waiting else ""
    return (
        f"score: raw {_number(score['raw'])}, final {_number(score['final'])}{source}, "
        f"coverage {score['n_scored']}/{score['n_expected']} trials scored{review}"
    )


def next_of_all(results: list[dict[str, Any]], folder: Path) -> str:
    """What one would type now that the cells of a folder were judged, reviewed or graded anew."""
    commands = [next_command(result, folder) for result in results]
    urgent = next((command for command in commands if not command.startswith("harbor")), None)
    return urgent or (f"ptb report {folder}" if len(results) > 1 else commands[0])


def next_command(result: dict[str, Any], folder: Path) -> str:
    """What one would type now: carry on when something is missing, else look at what happened."""
    if result["score"]["n_scored"] < result["score"]["n_expected"]:
        states = {trial["outcome"] for trial in result["trials"]}
        if Outcome.cancelled in states or len(result["trials"]) < result["score"]["n_expected"]:
            return f"ptb resume {folder}"
        if Outcome.infra_error in states:
            return f"ptb resume {folder} --retry infra_error"
        if Outcome.judge_missing in states:
            return f"ptb rejudge {folder} --only missing"
    if result["score"].get("awaits_review"):
        return f"ptb review {folder}"
    return f"harbor view {folder}"


def _number(value: float | None) -> str:
    return "null" if value is None else f"{value:.4f}"


# --- Downloads ----------------------------------------------------------------------------------------


@contextlib.contextmanager
def downloads(interval_sec: float, out: Console) -> Iterator[Callable[[hf_cache.Progress], None]]:
    """Something to be told how far downloads are: bars on a terminal, lines every `interval_sec` elsewhere."""
    if not out.is_terminal:
        said = dict[str, float]()

        def tell(progress: hf_cache.Progress) -> None:
            before = said.setdefault(progress.name, time.monotonic())
            if progress.over or time.monotonic() - before >= interval_sec:
                said[progress.name] = time.monotonic()
                out.print(_download(progress), markup=False)

        yield tell
        return
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, TimeRemainingColumn(), console=out) as bars:
        known: dict[str, Any] = {}

        def move(progress: hf_cache.Progress) -> None:
            if progress.name not in known:
                known[progress.name] = bars.add_task(progress.name)
            # A bar without any bytes would look as if nothing had come of it.
            total, done = (progress.total, progress.done) if progress.total else (1, 1)
            bars.update(known[progress.name], total=total, completed=done)

        yield move


def _download(progress: hf_cache.Progress) -> str:
    if progress.over:
        return f"{progress.name}: {'downloaded ' + _size(progress.total) if progress.total else 'is there'}"
    return f"{progress.name}: {_size(progress.done)} of {_size(progress.total)}"


def _size(count: int) -> str:
    from rich.filesize import decimal

    return decimal(count)


# --- Sweeps -------------------------------------------------------------------------------------------


def print_sweep_plan(folder: Path, plans: list[Plan], out: Console) -> None:
    """The plan of a sweep: its cells (the first ones of many), and what it takes in all."""
    table = Table(title=f"Plan: {len(plans)} cells in {shown(folder)}", title_justify="left")
    for name in ("cell", "benchmark", "model", "agent", "backend", "trials", "agent's limit", "GPU-hours at most"):
        table.add_column(name)
    for plan in plans[:ROWS]:
        config = plan.cell.config
        limit = _limit(plan.agent_hours, factor(config, "agent"))
        names = (config.benchmark.id, config.model.id, config.agent.id, config.backend.kind)
        table.add_row(plan.cell.folder.name, *map(escape, names), str(plan.n_trials), limit, f"{plan.gpu_hours:g}")
    out.print(table)
    if len(plans) > ROWS:
        out.print(f"and {len(plans) - ROWS} more cells in {shown(folder) / 'sweep.yaml'}", markup=False)
    for line in _sweep_plan_lines(plans):
        out.print(line, markup=False)


def _found(ok: bool) -> str:
    return "found" if ok else "missing"


def _judges(config: Config) -> str:
    """The judges of a cell, each with its LLM, and what they are made of where it is not our own loop."""
    judges = config.judge
    by = f"; all by codex {codex_program.wanted(judges.codex)}" if codex.wanted(judges) else ""
    return ", ".join(f"{name} ({judges.model or one.model})" for name, one in judges.panel.items()) + by


def _limit(hours: float | None, by: float) -> str:
    """A phase's limit in words."""
    return duration(hours) if hours is not None else f"the task's own{f', times {by:g}' if by != 1 else ''}"


def _server_gpus(plans: list[Plan]) -> str:
    """The GPUs that model servers take besides those of sandboxes: how long depends on the trials."""
    most = max(serve.server_gpus(plan.cell.config) for plan in plans)
    return f", and {most} GPUs of the model server while its cells last" if most else ""


def _sweep_plan_lines(plans: list[Plan]) -> Iterator[str]:
    config = plans[0].cell.config
    keys = {name: found for plan in plans for name, found in plan.keys.items()}
    hours = sum(plan.gpu_hours for plan in plans)
    price = f", ${hours * config.backend.usd_per_gpu_hour:.2f}" if config.backend.usd_per_gpu_hour else ""
    yield f"{sum(plan.n_trials for plan in plans)} trials, launcher {config.launcher.kind}"
    if beaker_spec.is_elsewhere(config):
        held = {name: secret for plan in plans for name, secret in beaker_spec.secrets(plan.cell).items()}
        yield f"secrets of Beaker: {', '.join(f'{secret} as {name}' for name, secret in held.items()) or 'none'}"
    else:
        yield f"keys: {', '.join(f'{name} ({_found(ok)})' for name, ok in keys.items()) or 'none'}"
    yield f"cost ceiling: {hours:g} GPU-hours{price}{_server_gpus(plans)}, and what the LLMs of agents and judges cost"
    if judges := _judges(config):
        yield f"judges: {judges}"
    for served in dict.fromkeys(serve.describe(plan.cell.config) for plan in plans if serve.settings(plan.cell.config)):
        yield "served: " + "; ".join(served.splitlines())
    yield from (f"note: {warning}" for warning in dict.fromkeys(text for plan in plans for text in plan.warnings))


def print_sweep(folder: Path, collected: Collected, out: Console) -> None:
    """The closing table of a sweep, what went wrong, and what to type next."""
    from ptb_runner import watch

    states = watch.read(folder)
    _print_cells(folder, states, out)
    failed = [state for state in states if state.error and state.outcome != "scored"]
    for state in failed[:10]:
        out.print(watch.ending(state), markup=False)
    for problem in collected.problems[:10]:
        out.print(f"not collected: {problem}", markup=False)
    out.print(collected.headline, markup=False)
    out.print(f"results: {shown(folder) / 'leaderboard.md'}", markup=False)
    out.print(f"next: {_next_for(folder, states)}", markup=False)


def print_states(folder: Path, states: list[CellState], out: Console) -> None:
    """How far a sweep is, as `ptb status` says it."""
    from ptb_runner import watch

    _print_cells(folder, states, out)
    out.print(watch.table(states))
    out.print(f"next: {_next_for(folder, states)}", markup=False)


def _print_cells(folder: Path, states: list[CellState], out: Console) -> None:
    """The cells in a table; of many, those that need a look first."""
    table = Table(title=str(shown(folder)), title_justify="left")
    for name in ("cell", "benchmark x model x agent", "state", "outcome", "trials over", "final score (scored)"):
        table.add_column(name)
    calm = [state for state in states if state.outcome == "scored" or (state.state == "planned" and not state.error)]
    chosen = states if len(states) <= ROWS else [*(one for one in states if one not in calm), *calm][:ROWS]
    for state in sorted(chosen, key=lambda state: state.number):
        trials = f"{state.finished}/{state.expected}"
        score = (read_json(folder / str(state.number) / "result.json") or {}).get("score", {})
        final = f"{_number(score['final'])} ({score['n_scored']}/{score['n_expected']})" if score else "-"
        table.add_row(str(state.number), escape(state.label), state.state, state.outcome or "-", trials, final)
    out.print(table)
    if len(states) > len(chosen):
        out.print(f"and {len(states) - len(chosen)} more cells", markup=False)


def _next_for(folder: Path, states: list[CellState]) -> str:
    if any(state.finished < state.expected or state.state in ("failed", "skipped", "lost") for state in states):
        return f"ptb resume {shown(folder)}"
    if any(state.outcome == Outcome.infra_error for state in states):
        return f"ptb resume {shown(folder)} --retry infra_error"
    if any(state.outcome == Outcome.judge_missing for state in states):
        return f"ptb rejudge {shown(folder)} --only missing"
    results = (read_json(folder / str(state.number) / "result.json") or {} for state in states)
    if any(result.get("score", {}).get("awaits_review") for result in results):
        return f"ptb review {shown(folder)}"
    return f"ptb report {shown(folder)}"
