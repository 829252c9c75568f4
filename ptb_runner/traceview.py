"""`ptb trace`: a trial's trace on the terminal, at once or as it grows."""

from __future__ import annotations

import time
from pathlib import Path

from ptb_runner import cell as cells
from ptb_runner import trace
from ptb_runner.clilogs import READERS
from ptb_runner.explain import UsageError
from ptb_runner.outcome import trial_record
from ptb_runner.redact import redactor

POLL_SEC = 0.5

type Key = tuple[int, int, str]


def trial(cell: Path, name: str) -> Path:
    """The folder of a cell's trial with this name, or of its only one; raises UsageError with what there is."""
    names = _names(cell)
    if not name and len(names) == 1:
        name = names[0]
    if name in names:
        return cell / "job" / name
    wrong = f"has no trial {name!r}" if name else "which trial's trace?" if names else "no trial has begun"
    raise UsageError(f"{cell}: {wrong}\n  it has: {', '.join(names) or 'none yet'}")


def _names(cell: Path) -> list[str]:
    return sorted(path.name for path in (cell / "job").glob("*__*") if path.is_dir())


def show(folder: Path, *, full: bool) -> int:
    """Print the trace of the trial in `folder`."""
    found = trace.read(folder)
    if found is None:
        raise UsageError(f"{folder}: its agent has left no trace{_why(folder)}")
    print(trace.text(found, trace.EVERYTHING if full else None), end="")
    return 0


def _why(folder: Path) -> str:
    if not isinstance(cells.read_json(folder / "result.json"), dict):
        return " yet\n  add -f to follow it"
    error = trial_record(folder, 1)["error"]
    return f"\n  {error['type']}: {error['message'].split('\n')[0][:300]}" if error else ""


def follow(cell: Path, name: str, *, full: bool) -> int:
    """Print the trace of a trial as it grows, until the trial is over."""
    secrets = redactor(cells.read_cell(cell))  # of a running trial the files still hold what its agent has printed
    printed: dict[Key, str] = {}
    folder: Path | None = None
    while True:
        held = cells.is_held(cell)
        if folder is None and (name or _names(cell) or not held):
            folder = cell / "job" / name if name and held else trial(cell, name)
        over = not held or (folder is not None and (folder / "result.json").exists())
        for key, found in _pieces(folder, over, full) if folder else ():
            piece, before = secrets.text(found), printed.get(key, "")
            if not before:
                print(piece, flush=True)
            elif piece != before and piece.startswith(before):  # anything else is the same with its secrets taken out
                print(piece[len(before) :].strip("\n"), flush=True)
            printed[key] = piece
        if over and folder:
            return 0 if printed else show(folder, full=full)
        time.sleep(POLL_SEC)


def _pieces(folder: Path, over: bool, full: bool) -> list[tuple[Key, str]]:
    """What there is to print of a trial so far.

    Always of the logs: what Harbor makes of them when all is over is divided into turns in another way.
    """
    found = trace.read_logs(folder)
    if found is None:
        return []
    plain = found.source not in READERS  # one text that grows
    pieces = list(trace.pieces(found, trace.EVERYTHING if full or plain else trace.Cut()))
    if not over and plain:
        pieces = [(key, piece if key[2] == "head" else piece.rpartition("\n")[0]) for key, piece in pieces]
    elif not over and pieces[-1][0][2] in ("text", "thinking"):
        pieces.pop()  # more of it may follow
    return pieces
