"""Another look at what agents have left: ptb rejudge, regrade, review."""

from __future__ import annotations

import contextlib
import dataclasses
import re
from collections.abc import Iterator
from pathlib import Path

from ptb_runner import cell as cells
from ptb_runner.cell import Cell
from ptb_runner.config import InlineConfig, ServeConfig
from ptb_runner.explain import UsageError
from ptb_runner.terminal import console, shown
from ptb_runner.verbs.command import cell_and_trial, cells_of, is_sweep, log_to, outcomes_in, parser_of


def rejudge(arguments: list[str]) -> int:
    """Judge the trials of a sweep or a cell again, or for the first time (judge=v1_1); the work itself is untouched."""
    from ptb_runner.doctor import compose
    from ptb_runner.judge.rejudge import changed, check
    from ptb_runner.judge.rejudge import rejudge as judge_again

    parser = parser_of(rejudge)
    parser.add_argument("overrides", nargs="*", metavar="OVERRIDE", help="judge=NAME: others; judge.OPTION=VALUE")
    parser.add_argument("--judges", default="", metavar="ID,...", help="only these judges")
    parser.add_argument("--only", choices=["missing"], help="missing: only judges that have given no verdict")
    parser.add_argument("--config-dir", metavar="DIR", help="a folder with judges of your own, in judge/")
    chosen = parser.parse_intermixed_args(arguments)
    folder = chosen.folder.resolve()
    if bad := next((text for text in chosen.overrides if not text.startswith(("judge=", "judge."))), None):
        raise UsageError(f"ptb rejudge: {bad}: only judges can be chosen here\n  judge=NAME or judge.OPTION=VALUE")
    search = [f"hydra.searchpath=[file://{Path(chosen.config_dir).resolve()}]"] if chosen.config_dir else []
    named = any(text.startswith("judge=") for text in chosen.overrides)
    composed = compose([*search, *chosen.overrides]).judge if named else None
    judges = [name for name in chosen.judges.split(",") if name]
    found = cells_of(folder)
    others = [changed(cell, chosen.overrides) if chosen.overrides and not named else composed for cell in found]
    for cell, other in zip(found, others, strict=True):
        check(cell, judges, other)
    out = console()
    with _told_of_interrupts(folder, found):
        for cell, other in zip(found, others, strict=True):
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

    parser = parser_of(review, trial=True)
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
    which = chosen.which if is_sweep(folder) else re.sub(r"^0(/|$)", "", chosen.which)
    place, trial = cell_and_trial(folder, which, "review")
    decide(cells.read_cell(place), trial or None, chosen.decision, chosen.note, chosen.by or getpass.getuser())
    return _collected(folder, cells_of(folder))


def _list_reviews(folder: Path) -> int:
    """Print what judges ask people about; 1 while something waits."""
    from ptb_runner.review import open_cases

    out, waiting = console(), 0
    found = cells_of(folder)
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
    out.print(f"{waiting} {'trial awaits' if waiting == 1 else 'trials await'} a review")
    if waiting:
        out.print(f"next: ptb review {shown(folder)}{which} --accept|--reject --note TEXT", markup=False)
    return 1 if waiting else 0


def regrade(arguments: list[str]) -> int:
    """Have the verifier score again what agents left, without the agents; earlier results move to superseded/."""
    from ptb_runner import sweep
    from ptb_runner.regrade import check
    from ptb_runner.regrade import regrade as grade_again

    parser = parser_of(regrade)
    parser.add_argument("--only", default="", metavar="OUTCOME,...", help="only trials with these outcomes")
    chosen = parser.parse_args(arguments)
    folder = chosen.folder.resolve()
    found = cells_of(folder)
    outcomes = outcomes_in(chosen.only, "--only")
    # Here, wherever the cells ran, and without their model.
    here = {"launcher": InlineConfig(), "serve": ServeConfig()}
    sweep.check_machine([dataclasses.replace(cell.config, **here) for cell in found])
    check(found, outcomes)
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
    log_to(cell.folder)


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
    if is_sweep(folder):
        out.print(collect_results(folder).headline, markup=False)
    out.print(f"next: {display.next_of_all(results, shown(folder))}", markup=False)
    return 0 if all(one["score"]["n_scored"] == one["score"]["n_expected"] for one in results) else 1
