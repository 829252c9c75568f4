"""What came of it: ptb collect, compare, report, export."""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ptb_runner import cell as cells
from ptb_runner import launch
from ptb_runner.explain import UsageError
from ptb_runner.sweepfile import read_sweep
from ptb_runner.terminal import console, shown
from ptb_runner.verbs.command import Parser, cells_of, parser_of

if TYPE_CHECKING:
    from ptb_runner.results.export import Exported


def collect(arguments: list[str]) -> int:
    """Read the cells of a sweep and write results.jsonl, results.csv, leaderboard.md and metrics.json beside them."""
    from ptb_runner.results.collect import collect as collect_results

    parser = parser_of(collect)
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

    if not any((folder / file).exists() for file in ("sweep.yaml", "cell.yaml")):
        reward.choose(harbor_jobs.plain(folder), name)
        return
    found = {cell.job: cell for cell in cells_of(folder)}
    for job in reward.choose(list(found), name):
        with cells.locked(found[job].folder):
            rescore(found[job])


def report(arguments: list[str]) -> int:
    """Write report.html: scores, spending, errors and every trial of a sweep or a cell, in one file for a browser."""
    from rich import progress

    from ptb_runner.results.report import report as write_report

    parser = parser_of(report)
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

    parser = parser_of(export)
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


def _compare_parser() -> Parser:
    parser = parser_of(compare, folder=False)
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
