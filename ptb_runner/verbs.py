"""The verbs that work on a folder or on this machine: `ptb VERB ...`."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import logging
import math
import os
import re
import shlex
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from rich.markup import escape
from rich.table import Table

from ptb_runner import cell as cells
from ptb_runner import launch, trial_folders
from ptb_runner.cell import Cell
from ptb_runner.explain import UsageError, nearest
from ptb_runner.sweepfile import read_sweep
from ptb_runner.terminal import console, shown
from ptb_runner.times import clock

if TYPE_CHECKING:
    from ptb_runner.results.export import Exported

STOP_SEC = 15.0  # how long `stop` waits for a runner to end its sandboxes


class _Parser(argparse.ArgumentParser):
    """argparse with our way of saying what is wrong."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{self.prog}: {message}\n  {' '.join(self.format_usage().split())}")


def _parser(verb: str, *, folder: bool = True) -> _Parser:
    text = " ".join((VERBS[verb].__doc__ or "").split())
    parser = _Parser(prog=f"ptb {verb}", description=text)
    if folder:
        parser.add_argument("folder", type=Path, help="the folder of a sweep or of a single cell")
    return parser


def _is_sweep(folder: Path) -> bool:
    """Whether a folder is a sweep's; raises UsageError when it is neither a sweep's nor a cell's."""
    if (folder / "sweep.yaml").exists():
        return True
    if not (folder / "cell.yaml").exists():
        if not folder.exists():
            raise UsageError(f"{folder}: there is no such folder\n  runs are below outputs/, sweeps below multirun/")
        raise UsageError(f"{folder}: neither a sweep's folder nor a cell's, it has no sweep.yaml and no cell.yaml")
    return False


def _cells_of(folder: Path) -> list[Cell]:
    if not _is_sweep(folder):
        return [cells.read_cell(folder)]
    return [cells.read_cell(folder / entry["folder"]) for entry in read_sweep(folder)["cells"]]


# --- Carrying on --------------------------------------------------------------------------------------


def resume(arguments: list[str]) -> int:
    """Run what is missing of a sweep or a cell: trials that never began or were interrupted; --retry adds outcomes."""
    from ptb_runner import sweep
    from ptb_runner.single import carry_on

    parser = _parser("resume")
    parser.add_argument("--retry", default="", metavar="OUTCOME,...", help="run trials with these outcomes again")
    chosen = parser.parse_args(arguments)
    again = _outcomes(chosen.retry, "--retry")
    folder = chosen.folder.resolve()
    found = _cells_of(folder)
    sweep.check_machine([cell.config for cell in found])
    at_work = {cell.folder for cell in found if launch.bring(cell.folder)}
    for cell in found if again else []:
        if cell.folder not in at_work:
            with cells.locked(cell.folder):
                trial_folders.set_aside_outcomes(cell, again)
    if _is_sweep(folder):
        return sweep.run(folder, found)
    if at_work:
        raise UsageError(f"{folder}: its runner is at work elsewhere\n  ptb status {folder}")
    _log_to(folder)
    return carry_on(folder)


def _outcomes(text: str, flag: str) -> list[str]:
    from ptb_runner.outcome import Outcome

    names = [name for name in text.split(",") if name]
    for name in names:
        if name not in Outcome.__members__:
            guess = nearest(name, Outcome.__members__)
            hint = f"did you mean {guess}?" if guess else f"they are: {', '.join(Outcome.__members__)}"
            raise UsageError(f"{flag} {name}: no such outcome\n  {hint}")
    return names


def _log_to(folder: Path) -> None:
    handler = logging.FileHandler(folder / "runner.log")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)


def stop(arguments: list[str]) -> int:
    """Stop a sweep or a cell that runs, from any process: its sandboxes end, what is finished stays."""
    chosen = _parser("stop").parse_args(arguments)
    folder = chosen.folder.resolve()
    found = _cells_of(folder)
    kind, whole = found[0].config.launcher.kind, _is_sweep(folder)
    sweep = folder if whole else folder.parent
    if kind in launch.IN_JOBS and (sweep / "sweep.yaml").exists():
        numbers = None if whole else [int(folder.name)]
        busy = [sweep / str(number) for number in launch.cancel(sweep, kind, numbers)]
    else:
        busy = _stop_here(found)
    out = console()
    for place in busy:
        out.print(f"still running: {shown(place)}", markup=False)
    out.print("stopped" if not busy else f"{len(busy)} cells did not stop")
    out.print(f"next: ptb resume {shown(folder)}", markup=False)
    return 1 if busy else 0


def _stop_here(found: list[Cell]) -> list[Path]:
    """End the runners of cells on this machine; the folders of those that are still running after STOP_SEC."""
    for pid in {pid for cell in found if (pid := _runner_of(cell)) is not None}:
        os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + STOP_SEC
    while (busy := [cell.folder for cell in found if cells.is_held(cell.folder)]) and time.monotonic() < deadline:
        time.sleep(0.1)
    return busy


def _runner_of(cell: Cell) -> int | None:
    """The process here that works on a cell; None when nobody does. Raises UsageError when it is elsewhere."""
    if not cells.is_held(cell.folder):
        return None
    owner = (cells.read_json(cell.folder / "status.json") or {}).get("launcher", {})
    if owner.get("host") != os.uname().nodename:
        raise UsageError(f"{cell.folder}: its runner is on {owner.get('host')}\n  type this command there")
    return owner.get("pid")


def collect(arguments: list[str]) -> int:
    """Read the cells of a sweep and write results.jsonl, results.csv, leaderboard.md and metrics.json beside them."""
    from ptb_runner.results.collect import collect as collect_results

    parser = _parser("collect")
    parser.add_argument("--reward", metavar="NAME", help="the reward that counts, where verifiers leave several")
    chosen = parser.parse_args(arguments)
    if chosen.reward:
        _choose_reward(chosen.folder.resolve(), chosen.reward)
    if (chosen.folder / "sweep.yaml").exists():
        launch.refresh(chosen.folder, read_sweep(chosen.folder)["launcher"])
    collected = collect_results(chosen.folder)
    out = console()
    for problem in collected.problems:
        out.print(f"not collected: {problem}", markup=False)
    out.print(collected.headline, markup=False)
    for path in collected.paths:
        out.print(f"wrote {shown(path)}", markup=False)
    out.print(f"next: ptb report {shown(chosen.folder)}", markup=False)
    return 0 if collected.complete else 1


def _choose_reward(folder: Path, name: str) -> None:
    """Have a reward count in cells, or in Harbor jobs that ptb_runner did not make."""
    from ptb_runner import reward
    from ptb_runner.result import rescore
    from ptb_runner.results import harbor_jobs

    if not any((folder / name).exists() for name in ("sweep.yaml", "cell.yaml")):
        reward.choose(harbor_jobs.found(folder), name)
        return
    found = {cell.job: cell for cell in _cells_of(folder)}
    for job in reward.choose(list(found), name):
        with cells.locked(found[job].folder):
            rescore(found[job])


def report(arguments: list[str]) -> int:
    """Write report.html: scores, spending, errors and every trial of a sweep or a cell, in one file for a browser."""
    from rich import progress

    from ptb_runner.results.report import report as write_report

    parser = _parser("report")
    parser.add_argument("--to", type=Path, metavar="FILE", help="where to write it instead of DIR/report.html")
    chosen = parser.parse_args(arguments)
    is_bundle = chosen.folder.is_file()
    beside = chosen.folder.with_name(chosen.folder.name.partition(".")[0] + ".html") if is_bundle else None
    out = console()

    def track(trials: list[Any]) -> Iterable[Any]:
        return progress.track(trials, "reading trials", console=out, transient=True, disable=not out.is_terminal)

    written = write_report(chosen.folder, chosen.to or beside or chosen.folder / "report.html", track)
    out.print(f"{written.n_trials} trials, {written.n_scored}/{written.n_planned} planned trials scored")
    out.print(f"wrote {shown(written.path)} ({written.size / 1e6:.1f} MB)", markup=False)
    out.print(f"next: xdg-open {shown(written.path)}", markup=False)
    return 0


def export(arguments: list[str]) -> int:
    """Write results in another form (PostTrainBench, tables, Harbor, trackers), or pack them into one file."""
    from ptb_runner.results import export as exports

    parser = _parser("export")
    form = parser.add_mutually_exclusive_group(required=True)
    form.add_argument("--format", choices=exports.FORMATS, help="the form")
    form.add_argument("--bundle", action="store_true", help="one file that `ptb report` and `ptb compare` read")
    parser.add_argument("--to", metavar="PLACE", help="file (csv, jsonl; - prints) or folder; bundle: DIR.ptb.tar.gz")
    parser.add_argument("--experiment", metavar="NAME", help="end of methods' names; a tracker's project")
    parser.add_argument("--max-file-mb", type=int, default=64, help="bundle: larger files are left out (MiB)")
    models = parser.add_mutually_exclusive_group()
    models.add_argument("--with-models", action="store_true", help="with the final_model folders that were kept")
    models.add_argument("--link-models", action="store_true", help="posttrainbench: with links to them")
    chosen = parser.parse_args(arguments)
    _check_export(chosen)
    if chosen.bundle:
        done = exports.bundle(chosen.folder, chosen.to, with_models=chosen.with_models, max_file_mb=chosen.max_file_mb)
    else:
        kind = "copy" if chosen.with_models else "link" if chosen.link_models else "none"
        done = exports.export(chosen.folder, chosen.format, chosen.to, experiment=chosen.experiment, models=kind)
    if chosen.to != "-":
        _tell(done)
    return 0


def _check_export(chosen: argparse.Namespace) -> None:
    """Refuse options that would do nothing."""
    form = "--bundle" if chosen.bundle else f"--format {chosen.format}"
    only = {
        "--experiment": (chosen.experiment, [f"--format {name}" for name in ("posttrainbench", "wandb", "mlflow")]),
        "--with-models": (chosen.with_models, ["--format posttrainbench", "--bundle"]),
        "--link-models": (chosen.link_models, ["--format posttrainbench"]),
    }
    for option, (given, forms) in only.items():
        if given and form not in forms:
            raise UsageError(f"{form} {option}: is for {' and '.join(forms)} only")
    if not chosen.to and not chosen.bundle:
        raise UsageError(f"{form}: needs --to, the file or folder to write")
    if chosen.max_file_mb < 1:
        raise UsageError(f"--max-file-mb {chosen.max_file_mb}: must be at least 1")


def _tell(exported: Exported) -> None:
    out = console()
    for line in exported.told:
        out.print(line, markup=False)
    out.print(f"exported {exported.what} to {exported.where}", markup=False)
    if exported.next:
        out.print(f"next: {exported.next}", markup=False)


def compare(arguments: list[str]) -> int:
    """Compare B and more with A, paired by benchmark, model, task and attempt: difference, interval, verdict, settings.

    A sweep, a cell, an export; DIR:AGENT is one agent of a sweep. Exit code: 0, 1 when a gate fails, 2 wrong usage.
    """
    from ptb_runner.results.compare import Rules
    from ptb_runner.results.compare_text import print_report
    from ptb_runner.results.comparisons import as_json, passed, reports
    from ptb_runner.results.gate import read_policy

    chosen = _compare_parser().parse_args(arguments)
    policy = read_policy(chosen.gate) if chosen.gate else None
    rules = Rules(
        confidence=chosen.confidence or (policy and policy.confidence) or 0.95,
        margin=chosen.margin or (policy and policy.margin),
        over=chosen.over,
        metric=chosen.metric,
    )
    found = reports(chosen.folders, rules, policy, chosen.parity or bool(policy and policy.require_parity))
    if chosen.json:
        print(json.dumps(as_json(found, rules, policy is not None), indent=2, allow_nan=False))
    else:
        for report in found:
            print_report(report, console())
        if policy:
            console().print(f"gate: {'passed' if passed(found) else 'FAILED'}")
    return 0 if passed(found) else 1


def _compare_parser() -> _Parser:
    parser = _parser("compare", folder=False)
    parser.add_argument("folders", nargs="+", metavar="DIR[:AGENT]", help="A, then what is compared with it")
    parser.add_argument("--margin", type=_between(0, None), help="difference within which A and B are equivalent")
    parser.add_argument("--confidence", type=_between(0.5, 1), help="of intervals and verdicts; default 0.95")
    parser.add_argument("--over", choices=["tasks", "attempts"], help="about tasks like these, or these as given")
    parser.add_argument("--metric", choices=["score", "pass"], default="score", help="final scores, or passes")
    parser.add_argument("--parity", action="store_true", help="also against the reference of B's +parity=NAME")
    parser.add_argument("--gate", type=Path, metavar="POLICY", help="a policy file; exit code 1 when it does not hold")
    parser.add_argument("--json", action="store_true", help="print all of it for programs")
    return parser


def _between(above: float, below: float | None) -> Callable[[str], float]:
    """A number of the command line, with its bounds."""

    def number(text: str) -> float:
        words = f"a number above {above:g}{f' and below {below:g}' if below is not None else ''}"
        try:
            value = float(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text}: not {words}") from None
        if not above < value < (math.inf if below is None else below):
            raise argparse.ArgumentTypeError(f"{text}: not {words}")
        return value

    return number


# --- Judging ------------------------------------------------------------------------------------------


def rejudge(arguments: list[str]) -> int:
    """Judge the trials of a sweep or a cell again, or for the first time (judge=v1_1); the work itself is untouched."""
    from ptb_runner.doctor import compose
    from ptb_runner.judge.rejudge import check
    from ptb_runner.judge.rejudge import rejudge as judge_again

    parser = _parser("rejudge")
    parser.add_argument("overrides", nargs="*", metavar="OVERRIDE", help="judge=NAME and judge.OPTION=VALUE: others")
    parser.add_argument("--judges", default="", metavar="ID,...", help="only these judges")
    parser.add_argument("--only", choices=["missing"], help="missing: only judges that have given no verdict")
    parser.add_argument("--config-dir", metavar="DIR", help="a folder with judges of your own, in judge/")
    chosen = parser.parse_intermixed_args(arguments)
    folder = chosen.folder.resolve()
    if bad := next((text for text in chosen.overrides if not text.startswith(("judge=", "judge."))), None):
        raise UsageError(f"ptb rejudge: {bad}: only judges can be chosen here\n  judge=NAME or judge.OPTION=VALUE")
    search = [f"hydra.searchpath=[file://{Path(chosen.config_dir).resolve()}]"] if chosen.config_dir else []
    other = compose([*search, *chosen.overrides]).judge if chosen.overrides else None
    judges = [name for name in chosen.judges.split(",") if name]
    found = _cells_of(folder)
    for cell in found:
        check(cell, judges, other)
    out = console()
    with _told_of_interrupts(folder, found):
        for cell in found:
            _name(cell, found)
            judge_again(
                cell,
                judges,
                only_missing=chosen.only == "missing",
                other=other,
                tell=lambda line: out.print(line, markup=False),
            )
    return _collected(folder, found)


def review(arguments: list[str]) -> int:
    """Say what is to become of trials that a judge wants a person to look at; without a decision, list them."""
    import getpass

    from ptb_runner.judge.judgements import DECISIONS
    from ptb_runner.review import review as decide

    parser = _parser("review")
    parser.add_argument("which", nargs="?", default="", metavar="CELL[/TRIAL]", help="number of the cell, and trial")
    decision = parser.add_mutually_exclusive_group()
    for name, what in zip(DECISIONS, ("the score stands", "the trial counts as flagged"), strict=True):
        decision.add_argument(f"--{name[:-2]}", dest="decision", action="store_const", const=name, help=what)
    parser.add_argument("--note", default="", help="why; it is recorded, with your name and the time")
    parser.add_argument("--by", default="", metavar="NAME", help="your name, if not that of your account")
    chosen = parser.parse_args(arguments)
    folder = chosen.folder.resolve()
    if chosen.decision is None:
        return _list_reviews(folder)
    if not chosen.note.strip():
        raise UsageError("ptb review: --note is missing\n  say why, in a sentence: --note TEXT")
    # A cell of its own is number 0 wherever cells are numbered.
    which = chosen.which if _is_sweep(folder) else re.sub(r"^0(/|$)", "", chosen.which)
    place, trial = _which(folder, which, "review")
    decide(cells.read_cell(place), trial or None, chosen.decision, chosen.note, chosen.by or getpass.getuser())
    return _collected(folder, _cells_of(folder))


def _list_reviews(folder: Path) -> int:
    """Print what judges ask people about; 1 while something waits."""
    from ptb_runner.review import open_cases

    out, waiting = console(), 0
    found = _cells_of(folder)
    for cell in found:
        for trial in open_cases(cells.read_json(cell.folder / "result.json") or {"trials": []}):
            one = trial["review"]
            waiting += one["state"] == "awaiting"
            by = f" by {one['by']}, {one['at']}: {one['note']}" if one["by"] else ""
            out.print(f"{_label(cell, found)}{trial['name']}: {one['state']}{by}", markup=False)
            for name in one["raised"]:
                judge, _, field = name.partition(".")
                why = trial["judgements"][judge]["verdict"][f"justification_{field}"]
                out.print(f"  {name}: {' '.join(why.split())}", markup=False)
    which = "" if len(found) == 1 else " CELL"
    out.print(f"{waiting} trials await a review")
    if waiting:
        out.print(f"next: ptb review {shown(folder)}{which} --accept|--reject --note TEXT", markup=False)
    return 1 if waiting else 0


def regrade(arguments: list[str]) -> int:
    """Have the verifier score again what agents left, without the agents; earlier results move to superseded/."""
    from ptb_runner import sweep
    from ptb_runner.regrade import regrade as grade_again

    parser = _parser("regrade")
    parser.add_argument("--only", default="", metavar="OUTCOME,...", help="only trials with these outcomes")
    chosen = parser.parse_args(arguments)
    folder = chosen.folder.resolve()
    found = _cells_of(folder)
    outcomes = _outcomes(chosen.only, "--only")
    sweep.check_machine([cell.config for cell in found])
    out, whole = console(), True
    with _told_of_interrupts(folder, found):
        for cell in found:
            _name(cell, found)
            whole &= grade_again(cell, outcomes, lambda line: out.print(line, markup=False))[1]
    code = _collected(folder, found)
    return code if whole else 1


def _label(cell: Cell, found: list[Cell]) -> str:
    return f"cell {cell.folder.name}: " if len(found) > 1 else ""


def _name(cell: Cell, found: list[Cell]) -> None:
    """Say which cell comes next, and let its log take what happens."""
    if len(found) > 1:
        console().print(f"cell {cell.folder.name}", markup=False)
    _log_to(cell.folder)


@contextlib.contextmanager
def _told_of_interrupts(folder: Path, found: list[Cell]) -> Iterator[None]:
    """After Ctrl-C the tables of a sweep hold what was done by then, and the user knows."""
    try:
        yield
    except KeyboardInterrupt:
        console().print("interrupted; what was done by then counts")
        _collected(folder, found)
        raise


def _collected(folder: Path, found: list[Cell]) -> int:
    """Print the scores as they are now, collect the sweep anew, and say what to type next."""
    from ptb_runner import display
    from ptb_runner.results.collect import collect as collect_results

    out = console()
    results = [cells.read_json(cell.folder / "result.json") or {} for cell in found]
    for cell, result in zip(found, results, strict=True):
        out.print(f"{_label(cell, found)}{display.score_line(result['score'])}", markup=False)
    if _is_sweep(folder):
        out.print(collect_results(folder).headline, markup=False)
    out.print(f"next: {display.next_of_all(results, shown(folder))}", markup=False)
    return 0 if all(one["score"]["n_scored"] == one["score"]["n_expected"] for one in results) else 1


# --- Looking ------------------------------------------------------------------------------------------


def status(arguments: list[str]) -> int:
    """Say how far a sweep or a cell is: states, outcomes, what runs, what was spent; --watch shows it live."""
    parser = _parser("status")
    parser.add_argument("--watch", action="store_true", help="show it live until everything is over")
    parser.add_argument("--json", action="store_true", help="print it for programs")
    chosen = parser.parse_args(arguments)
    folder = chosen.folder.resolve()
    return _sweep_status(folder, chosen) if _is_sweep(folder) else _cell_status(folder, chosen)


def _sweep_status(folder: Path, chosen: argparse.Namespace) -> int:
    from ptb_runner import watch
    from ptb_runner.display import print_states

    def refresh() -> None:
        launch.refresh(folder, read_sweep(folder)["launcher"])

    refresh()
    states = watch.read(folder)
    if chosen.json:
        print(json.dumps([dataclasses.asdict(state) for state in states], indent=2))
        return 0
    if chosen.watch and not all(state.is_over for state in states):
        watch.follow(folder, 30.0, console(), threading.Event(), until_over=True, refresh=refresh)
        states = watch.read(folder)
    print_states(folder, states, console())
    return 0


def _cell_status(folder: Path, chosen: argparse.Namespace) -> int:
    elsewhere = launch.bring(folder)
    state = cells.read_json(folder / "status.json")
    if not isinstance(state, dict) or not isinstance(state.get("attempts"), dict):
        raise UsageError(f"{folder / 'status.json'}: missing or damaged\n  ptb resume {folder} writes it anew")
    if chosen.json:
        print(json.dumps(state, indent=2))
        return 0
    out = console()
    while True:
        for line in _status_lines(state):
            out.print(line, markup=False)
        held = elsewhere or cells.is_held(folder)
        if state["state"] == "running" and not held:
            out.print(f"but no runner is at work on it; next: ptb resume {shown(folder)}", markup=False)
        if not chosen.watch or not held:
            return 0
        time.sleep(2.0)
        elsewhere = elsewhere and launch.bring(folder)
        state = cells.read_json(folder / "status.json") or state


def _status_lines(state: dict[str, Any]) -> list[str]:
    attempts = state["attempts"]
    ended = ", ".join(f"{count} {outcome}" for outcome, count in attempts["by_outcome"].items()) or "none"
    now = time.time()
    return [
        f"cell {state['cell_id']}: {state['state']}, as of {state['updated_at']}",
        f"trials over: {attempts['finished']}/{attempts['expected']} ({ended})",
        *(
            f"  {name}: {phase} for {clock(now - state['since'].get(name, now))}"
            for name, phase in attempts["running"].items()
        ),
        *([f"last error: {state['error']}"] if state["error"] else []),
    ]


def logs(arguments: list[str]) -> int:
    """Print a cell's runner.log, or with CELL/TRIAL what that trial's agent and verifier printed; -f follows.

    With --serve what the server of its model printed.
    """
    from ptb_runner import servers

    parser = _parser("logs")
    parser.add_argument(
        "which", nargs="?", default="", metavar="CELL[/TRIAL]", help="number of the cell, name of a trial"
    )
    parser.add_argument("-f", "--follow", action="store_true", help="go on until the cell is over")
    parser.add_argument("--serve", action="store_true", help="the log of the server that was started for its model")
    chosen = parser.parse_args(arguments)
    cell, trial = _which(chosen.folder, chosen.which, "logs")
    elsewhere = launch.bring(cell)
    served = servers.log_of(cell)
    if chosen.serve:
        if trial or served is None:
            raise UsageError(
                "ptb logs --serve: a trial has no server of its own\n  leave the trial out"
                if trial
                else f"{cell}: no model server was started for it\n  serve=vllm starts one"
            )
        paths = [served]
    elif trial:
        folder = cell / "job" / trial
        if not folder.is_dir():
            names = ", ".join(sorted(path.name for path in (cell / "job").glob("*__*"))) or "none yet"
            raise UsageError(f"{cell}: has no trial {trial!r}\n  it has: {names}")
        paths = [folder / "trial.log", *sorted(folder.glob("agent/*.txt")), folder / "verifier" / "test-stdout.txt"]
    else:
        paths = [cell / "runner.log"]
        if served:
            again = ["ptb", "logs", str(shown(chosen.folder)), *([chosen.which] if chosen.which else []), "--serve"]
            console(stderr=True).print(f"its model server's log: {shlex.join(again)}", markup=False)
    _print_files(paths, cell if chosen.follow else None, elsewhere)
    return 0


def _which(folder: Path, which: str, verb: str) -> tuple[Path, str]:
    """The cell's folder and the trial's name that the user means."""
    if not _is_sweep(folder):
        return folder, which
    number, _, trial = which.partition("/")
    if not number:
        raise UsageError(f"{folder}: a sweep; which cell's?\n  ptb {verb} {folder} CELL, with the number of a cell")
    if not (folder / number / "cell.yaml").exists():
        raise UsageError(f"{folder}: has no cell {number!r}\n  ptb status {folder} lists them")
    return folder / number, trial


def _print_files(paths: list[Path], until_over: Path | None, elsewhere: bool) -> None:
    """Print files one after another; with `until_over` go on with what is added, until that cell is not running.

    `elsewhere`: its runner is, and what it writes has to be brought here.
    """
    printed = dict.fromkeys(paths, 0)
    while True:
        over = until_over is None or not (launch.bring(until_over) if elsewhere else cells.is_held(until_over))
        for path in [path for path in paths if path.is_file()]:
            with path.open(errors="replace") as file:
                if len(paths) > 1 and not printed[path]:
                    print(f"==> {path.name} <==")
                file.seek(printed[path])
                print(file.read(), end="", flush=True)
                printed[path] = file.tell()
        if over:
            return
        time.sleep(2.0 if elsewhere else 0.5)


def trace(arguments: list[str]) -> int:
    """Print what a trial's agent said, ran and got back, turn by turn; -f follows one that runs."""
    from ptb_runner import traceview

    parser = _parser("trace")
    parser.add_argument(
        "which", nargs="?", default="", metavar="CELL[/TRIAL]", help="number of the cell, name of a trial"
    )
    parser.add_argument("-f", "--follow", action="store_true", help="go on until the trial is over")
    parser.add_argument("--full", action="store_true", help="cut nothing")
    chosen = parser.parse_args(arguments)
    if (chosen.folder / "agent").is_dir() and not (chosen.folder / "cell.yaml").exists():
        return traceview.show(chosen.folder, full=chosen.full)
    cell, name = _which(chosen.folder, chosen.which, "trace")
    launch.bring(cell)
    if chosen.follow:
        return traceview.follow(cell, name, full=chosen.full)
    return traceview.show(traceview.trial(cell, name), full=chosen.full)


# --- This machine -------------------------------------------------------------------------------------


def doctor(arguments: list[str]) -> int:
    """Check what this machine has for running cells and say how to mend the rest; overrides choose the backend.

    With --fix set a restricted machine up for podman first: what that exports is printed for `eval "$(...)"`.
    """
    from ptb_runner.doctor import checks, fix

    parser = _parser("doctor", folder=False)
    parser.add_argument("overrides", nargs="*", metavar="OVERRIDE", help="for example backend=bubblewrap")
    parser.add_argument("--fix", action="store_true", help="make what podman lacks here, and print its exports")
    chosen = parser.parse_args(arguments)
    out = console(stderr=chosen.fix)
    exports, found = fix(chosen.overrides) if chosen.fix else ("", checks(chosen.overrides))
    table = Table("check", "state", "what was found, or what to do", title="ptb doctor", title_justify="left")
    failed = False
    for check in found:
        failed |= check.failed
        table.add_row(check.name, "FAIL" if check.failed else "ok", escape(check.text))
    out.print(table)
    if exports:
        print(exports, end="")
        again = shlex.join(["ptb", "doctor", "--fix", *chosen.overrides])
        out.print(f'runs need no more; for podman typed by hand: eval "$({again})"', markup=False)
    return 1 if failed else 0


def clean(arguments: list[str]) -> int:
    """Remove what runners that are gone left behind: sandboxes, scratch folders; with --images what was built, too."""
    from ptb_runner import backend
    from ptb_runner.doctor import compose

    parser = _parser("clean", folder=False)
    parser.add_argument("overrides", nargs="*", metavar="OVERRIDE", help="for example backend=bubblewrap")
    parser.add_argument("--images", action="store_true", help="also the images built here that nothing uses")
    chosen = parser.parse_args(arguments)
    config = compose(chosen.overrides)
    # An account that cannot be asked may hold sandboxes that cost: that is not "0 leftovers".
    if config.backend.kind == "modal":
        for _, failed, text in backend.of(config).checks(config):
            if failed:
                raise UsageError(text)
    removed = backend.of(config).reap(config)
    removed += backend.of(config).clean_images(config) if chosen.images else []
    for left in removed:
        console().print(f"removed {left}", markup=False)
    console().print(f"{len(removed)} leftovers removed")
    return 0


def cache(arguments: list[str]) -> int:
    """Download what runs can use more than once.

    `hf` fetches the models and data sets that cells need of the hub, `test-data` a benchmark's test items for the
    check against contamination.
    """
    parser = _parser("cache", folder=False)
    parser.add_argument("what", choices=["hf", "test-data"], help="models and data sets, or test items")
    parser.add_argument("overrides", nargs="*", metavar="OVERRIDE", help="for example benchmark=gsm8k,humaneval")
    chosen = parser.parse_args(arguments)
    return _cache_hf(chosen.overrides) if chosen.what == "hf" else _cache_test_data(chosen.overrides)


def _cache_test_data(overrides: list[str]) -> int:
    from ptb_runner import test_data
    from ptb_runner.doctor import compose

    path, count = test_data.download(compose(overrides))
    console().print(f"wrote {count} items to {path}", markup=False)
    return 0


def _cache_hf(overrides: list[str]) -> int:
    from ptb_runner import backend, display, hf_cache
    from ptb_runner.doctor import compose_all

    configs = compose_all(overrides)
    if len({config.backend.kind for config in configs}) > 1:
        raise UsageError("ptb cache hf: fills the cache of one backend\n  type the command once for each backend")
    if configs[0].backend.hf_cache is None:
        raise UsageError("backend.hf_cache=null: says that there is no cache\n  leave it out, or name a place")
    out, needed = console(), hf_cache.wanted(configs)
    with display.downloads(configs[0].progress.interval_sec, out) as show:
        place = backend.of(configs[0]).fill_hf_cache(configs[0], needed, show)
    out.print(f"hub cache: {len(needed)} repositories in {place}" if needed else "these cells need nothing of the hub")
    out.print(f"next: ptb {' -m' if len(configs) > 1 else ''}{' '.join(overrides)}".replace("  ", " "), markup=False)
    return 0


VERBS: dict[str, Callable[[list[str]], int]] = {
    "status": status,
    "logs": logs,
    "trace": trace,
    "stop": stop,
    "resume": resume,
    "collect": collect,
    "compare": compare,
    "report": report,
    "export": export,
    "rejudge": rejudge,
    "regrade": regrade,
    "review": review,
    "doctor": doctor,
    "clean": clean,
    "cache": cache,
}
