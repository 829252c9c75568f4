"""What a cell's Beaker job has copied, brought to the cell's folder here: from weka where that is mounted, else Beaker.

A job copies the cell's files to its results folder while it runs, and at its end to its result dataset, too, which
Beaker keeps. The first is seen only where weka is mounted, the second only when a job is over.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from ptb_runner.launch.beaker_client import Account
from ptb_runner.launch.copies import NOT_FETCHED, SMALL, remove_others

if TYPE_CHECKING:
    from beaker import BeakerDataset, BeakerJob
    from beaker.types import BeakerDatasetFile

_BYTES_PER_SEC = 1 << 20  # a download slower than this is given up
_BELOW = "cell"  # of a results folder
ROOT = Path("/")
"""Where weka is mounted here, if it is: at the same place as in jobs."""


def mounted(results: str | None) -> Path | None:
    """The folder that a cell's jobs copy to, when this machine sees it and something is there."""
    place = ROOT / results.lstrip("/") / _BELOW if results else None
    return place if place and place.is_dir() else None


def from_folder(source: Path, folder: Path, *, whole: bool) -> None:
    """Bring what changed; `whole`: for the last time, so that the folder then is what was copied."""
    found = (path for path in sorted(source.rglob("*")) if path.is_file() and path.suffix != ".tmp")
    names = {path.relative_to(source).as_posix(): path for path in found}
    for name, path in _wanted(names).items():
        if _is_due(folder / name, path, whole):
            _place(folder / name, lambda partial, path=path: shutil.copy2(path, partial))
    if whole:
        remove_others(folder / "job", {folder / name for name in names})


def from_datasets(account: Account, jobs: Iterable[BeakerJob], folder: Path) -> str | None:
    """Bring what the newest job left that left anything; returns its dataset's id, None when none did."""
    for job in jobs:
        if (dataset := account.ask(lambda beaker, job=job: beaker.job.get_results(job))) is None:
            continue
        listed = account.ask(lambda beaker, dataset=dataset: list(beaker.dataset.list_files(dataset, prefix=_BELOW)))
        files = {one.path.removeprefix(f"{_BELOW}/"): one for one in listed}
        if files:
            for name, file in _wanted(files).items():
                _place(folder / name, lambda partial, file=file: _download(account, dataset, file, partial))
            remove_others(folder / "job", {folder / name for name in files})
            return dataset.id
    return None


def _download(account: Account, dataset: BeakerDataset, file: BeakerDatasetFile, partial: Path) -> None:
    def work(beaker: object) -> None:
        with partial.open("wb") as target:
            target.writelines(account.client.dataset.stream_file(dataset, file.path))

    account.ask(work, account.answer_sec + file.size / _BYTES_PER_SEC)


def _wanted[T](files: dict[str, T]) -> dict[str, T]:
    return {name: file for name, file in files.items() if name.partition("/")[0] not in NOT_FETCHED}


def _is_due(path: Path, source: Path, whole: bool) -> bool:
    new = source.stat()
    try:
        known = path.stat()
    except OSError:
        return True
    alike = (known.st_size, known.st_mtime_ns) == (new.st_size, new.st_mtime_ns)
    return not alike or (whole and new.st_size <= SMALL)


def _place(path: Path, write: Callable[[Path], object]) -> None:
    """Put a file in its place when it is whole."""
    partial = path.with_name(f".{path.name[:200]}.fetch.tmp")
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        write(partial)
        partial.replace(path)
    except FileNotFoundError:  # it was there a moment ago
        pass
    finally:
        partial.unlink(missing_ok=True)
