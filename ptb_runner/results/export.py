"""Hand results on: to other programs (csv, jsonl), trackers (wandb, mlflow), Harbor, and PostTrainBench's own scripts.

Every export holds the provenance of what it holds. Exporting again brings an export up to date; what somebody else
made is never written over.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ptb_runner.cell import read_json, write_json
from ptb_runner.explain import UsageError
from ptb_runner.results import export_posttrainbench, trackers
from ptb_runner.results.bundle import opened, pack
from ptb_runner.results.collect import cell_line, csv_text, jsonl, trial_lines
from ptb_runner.results.export_posttrainbench import Models
from ptb_runner.results.harbor_jobs import ORIGIN
from ptb_runner.results.row import Row
from ptb_runner.results.rows import read_rows

FORMATS = ("posttrainbench", "csv", "jsonl", "harbor", "wandb", "mlflow")


@dataclass(frozen=True)
class Exported:
    """What an export wrote: `what` in words, `where`; `told` has a line for each thing that is not in it, or odd."""

    what: str
    where: str
    told: list[str]
    next: str


def export(folder: Path, form: str, to: str, *, experiment: str | None = None, models: Models = "none") -> Exported:
    """Export a sweep or a cell in one of FORMATS to a file, a folder or a tracker.

    Raises UsageError when there is nothing to export, or when the place is somebody else's.
    """
    folder = opened(folder)
    rows = read_rows(folder)
    if not any(row.trials for row in rows):
        raise UsageError(f"{folder}: no trial is over yet, there is nothing to export\n  ptb status {folder}")
    try:
        return _export(folder, rows, form, to, experiment, models)
    except OSError as error:
        raise UsageError(f"--format {form} --to {to}: {error.filename or to}: {error.strerror or error}") from None


def _export(folder: Path, rows: list[Row], form: str, to: str, experiment: str | None, models: Models) -> Exported:
    told = [f"cell {row.number}: {problem}" for row in rows for problem in row.problems]
    if form == "posttrainbench":
        return _posttrainbench(folder, rows, Path(to), experiment, models, told)
    if form == "harbor":
        return _harbor(folder, rows, Path(to), told)
    if form in ("wandb", "mlflow"):
        return _tracker(form, rows, to, experiment or "ptb_runner", told)
    return _table(form, rows, to, told)


def bundle(folder: Path, to: str | None, *, with_models: bool, max_file_mb: int) -> Exported:
    """Pack a folder of results into one file, by default `<name>.ptb.tar.gz` beside the folder."""
    rows = read_rows(folder)
    told = [f"cell {row.number}: {problem}" for row in rows for problem in row.problems]
    own = folder.resolve()
    target = Path(to) if to else own.with_name(f"{own.name}.ptb.tar.gz")
    target = target / f"{own.name}.ptb.tar.gz" if target.is_dir() else target
    packed = pack(folder, target, with_models=with_models, max_file_mb=max_file_mb)
    for reason in dict.fromkeys(one["reason"] for one in packed.left_out):
        sizes = [one["bytes"] for one in packed.left_out if one["reason"] == reason]
        told.append(f"left out: {len(sizes)} files, {sum(sizes) / 1e6:.1f} MB: {reason}")
    told += [f"secrets taken out of {name}" for name in packed.redacted]
    what = f"{len(rows)} cells, {packed.n_files} files, {packed.size / 1e6:.1f} MB"
    return Exported(what, str(packed.path), told, f"ptb report {packed.path}")


# --- PostTrainBench ---------------------------------------------------------------------------------


def _posttrainbench(
    folder: Path, rows: list[Row], results: Path, experiment: str | None, models: Models, told: list[str]
) -> Exported:
    if experiment and not re.fullmatch(r"[A-Za-z0-9._-]+", experiment):
        raise UsageError(f"--experiment {experiment}: may hold letters, digits, points, dashes and underscores")
    if (results / "sweep.yaml").exists() or (results / "cell.yaml").exists():
        raise UsageError(f"--to {results}: is a run's own folder\n  name a folder for the exports, such as results")
    paths, more = export_posttrainbench.export(folder, rows, results, experiment, models)
    if not paths:
        raise UsageError("\n  ".join([f"{folder}: nothing that PostTrainBench has a form for", *more]))
    methods = {path.parent.name for path in paths}
    what = f"{len(paths)} runs of {len(methods)} methods"
    return Exported(what, str(results), told + more, f"python scripts/collect.py --data-dir {results.resolve()}")


# --- Tables -----------------------------------------------------------------------------------------


def _table(form: str, rows: list[Row], to: str, told: list[str]) -> Exported:
    lines = _with_provenance(rows) if form == "jsonl" else [cell_line(row) | _flat_provenance(row) for row in rows]
    text = jsonl(lines) if form == "jsonl" else csv_text(list(lines))
    what = f"{sum(len(row.trials) for row in rows)} trials" if form == "jsonl" else f"{len(rows)} cells"
    if to == "-":
        print(text, end="")
        return Exported(what, "", told, "")
    path = Path(to)
    path = path / f"results.{form}" if path.is_dir() else path
    _check_ours(path, text)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, errors="backslashreplace")
    return Exported(what, str(path), told, "")


def _check_ours(path: Path, text: str) -> None:
    """Refuse to write over a file that no earlier export left; ours begin alike."""
    start = text[:20].encode()
    if path.exists() and path.read_bytes()[: len(start)] not in (b"", start):
        raise UsageError(f"--to {path}: is there already and no export like this one\n  name another file")


def _with_provenance(rows: list[Row]) -> Iterable[dict[str, Any]]:
    known = {row.number: row.result["provenance"] for row in rows}
    return (line | {"provenance": known[line["number"]]} for line in trial_lines(rows))


def _flat_provenance(row: Row) -> dict[str, Any]:
    """The provenance as columns, the same for every cell."""
    found = row.result["provenance"]
    versions, git = found.get("versions") or {}, found.get("git") or {}
    names = ("task_sha256", "task_checksum", "agent_version", "observed_gpu", "parity")
    return {
        **{f"version_{name.replace('-', '_')}": versions.get(name) for name in ("ptb-runner", "harbor", "modal")},
        "git_commit": git.get("commit"),
        "git_dirty": git.get("dirty"),
        **{name: found.get(name) for name in names},
        "not_comparable_because": "; ".join(found["not_comparable_because"]),
    }


# --- Harbor -----------------------------------------------------------------------------------------


def _harbor(folder: Path, rows: list[Row], to: Path, told: list[str]) -> Exported:
    """A copy of each cell's Harbor job as it is, with one file more: what the cell was and its provenance."""
    written = 0
    for row in rows:
        job = folder / row.folder / "job"
        if not row.trials or not (job / "config.json").exists():
            told.append(f"cell {row.number}: has no Harbor job: not exported")
            continue
        _copy_job(job, to / _job_name(row), row)
        written += 1
    if not written:
        raise UsageError("\n  ".join([f"{folder}: has no Harbor job to export", *told]))
    return Exported(f"{written} Harbor jobs", str(to), told, f"harbor view {to}")


def _job_name(row: Row) -> str:
    words = re.sub(r"[^A-Za-z0-9.-]+", "-", f"{row.benchmark}-{row.model}-{row.agent}")
    return f"{words[:80]}-{row.cell_id}"


def _copy_job(job: Path, target: Path, row: Row) -> None:
    """Copy beside the target first, so that there is never half a job."""
    origin = {name: getattr(row, name) for name in ("number", "cell_id", "benchmark", "model", "agent", "backend")}
    origin |= {"overrides": row.overrides, "gpus": row.gpus, "score": row.score, "job_id": _job_id(job)}
    origin |= {"benchmark_options": row.benchmark_options}
    if target.exists() and (read_json(target / ORIGIN) or {}).get("job_id") != origin["job_id"]:
        raise UsageError(f"{target}: is there already and no export of this cell\n  choose another folder for --to")
    partial = target.with_name(f".{target.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    shutil.copytree(job, partial, symlinks=True)
    write_json(partial / ORIGIN, origin | {"trials": row.trials, "provenance": row.result["provenance"]})
    shutil.rmtree(target, ignore_errors=True)
    partial.rename(target)


def _job_id(job: Path) -> str | None:
    found = read_json(job / "result.json")
    return json.dumps(found.get("id")) if isinstance(found, dict) else None


# --- Trackers ---------------------------------------------------------------------------------------


def _tracker(form: str, rows: list[Row], to: str, name: str, told: list[str]) -> Exported:
    found = trackers.runs(rows)
    if form == "wandb":
        changed = trackers.to_wandb(found, Path(to), name)
        following = f"wandb sync {to}/wandb/offline-run-*"
    else:
        changed = trackers.to_mlflow(found, to, name)
        following = (
            f"mlflow ui --backend-store-uri {to if '://' in to else f'sqlite:///{Path(to).resolve()}/mlflow.db'}"
        )
    return Exported(f"{len(found)} runs ({changed} new or changed)", to, told, following)
