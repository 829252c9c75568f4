"""A cell on disk: its folder, its identity and its state.

The folder is the whole truth about a cell: `cell.yaml` says what it is, `task/` what was rendered,
`job/` what Harbor did, `status.json` how far it is, `result.json` what came out. Anything that holds
the folder can carry on with the cell.
"""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import importlib.metadata
import json
import os
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from omegaconf.errors import ConfigKeyError, OmegaConfBaseException

from ptb_runner import dataset
from ptb_runner.config import Config, options, typed
from ptb_runner.explain import UsageError, unknown_key

SCHEMA_VERSION = 1


class Busy(UsageError):
    """Another runner is at work on the cell."""


@dataclass(frozen=True)
class Cell:
    """A cell read from its folder; `config` has every interpolation resolved, also ${oc.env:NAME}."""

    folder: Path
    id: str
    config: Config
    identity: dict[str, Any]
    overrides: list[str]

    @property
    def task(self) -> Path:
        """The rendered Harbor task."""
        return self.folder / "task"

    @property
    def tasks(self) -> list[Path]:
        """The Harbor tasks that the cell runs: its task folder, or the ones in it when it is a dataset's."""
        return dataset.folders(self.task)

    @property
    def n_trials(self) -> int:
        """Trials of the cell: so many attempts of each task."""
        return self.config.attempts * len(self.tasks)

    @property
    def job(self) -> Path:
        """The Harbor job folder; each trial is a folder in it."""
        return self.folder / "job"

    @property
    def handoff(self) -> Path:
        """Where each trial hands its final_model over to its verifier; a folder a trial."""
        return self.folder / "handoff"

    @property
    def regrading(self) -> Path:
        """Where trials are while their verifier works again; those in `job` stay until the new ones are whole."""
        return self.folder / "regrading"

    @property
    def superseded(self) -> Path:
        """Trial folders that were run again: interrupted ones and infrastructure errors. Nothing is deleted."""
        return self.folder / "superseded"


def now() -> str:
    """The time in UTC, as it stands in every file."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")


def write_json(path: Path, value: Any) -> None:
    """Write a file that is at any moment either the old or the new one, whole."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    temporary.write_text(json.dumps(value, indent=2, allow_nan=False) + "\n")
    temporary.replace(path)


def read_json(path: Path) -> Any:
    """The file's content, or None when there is none or it is not whole."""
    with contextlib.suppress(OSError, ValueError):
        return json.loads(path.read_text())
    return None


def content_hash(folder: Path) -> str:
    """SHA-256 over the names, executable bits and contents of a folder's files."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_symlink():
            digest.update(f"link {name} {os.readlink(path)}\0".encode())
        elif path.is_file():
            executable = bool(path.stat().st_mode & 0o100)
            digest.update(f"file {name} {executable} {path.stat().st_size}\0".encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()


def identity_of(config: dict[str, Any], task: Path) -> dict[str, Any]:
    """What makes a cell the cell it is: every option marked `result`, and the rendered task's content.

    Two cells with equal identities measure the same thing; concurrency, folders and launchers are not in it.
    """
    identity = {item.key: _identifying(config, item.key) for item in options(config) if item.result}
    identity["task_sha256"] = content_hash(task)
    return identity


def _identifying(plain: dict[str, Any], key: str) -> Any:
    """What the identity holds of an option."""
    value: Any = plain
    for name in key.split("."):
        value = value[name]
    # Where the folder lay does not matter: its content was copied, and is hashed.
    return Path(value).name if key == "benchmark.path" and value else value


def check_unchanged(cell: Cell) -> None:
    """Refuse a cell that is not the one that was prepared: its results would be filed under the wrong name."""
    plain = _content(cell.folder / "cell.yaml")["config"]
    written = {key: cell.identity[key] for key in cell.identity if key != "task_sha256"}
    found: dict[str, Any] = {}
    for key in written:
        with contextlib.suppress(KeyError, TypeError):
            found[key] = _identifying(plain, key)
    if changed := differences(written, found):
        told = "; ".join(changed)[:600]
        raise UsageError(
            f"{cell.folder / 'cell.yaml'}: was changed, so this is no longer cell {cell.id}: {told}\n"
            "  start a new run with these options, or restore the file"
        )
    if not cell.task.is_dir():
        raise UsageError(f"{cell.task}: is missing\n  restore the folder, or start a new run")
    if content_hash(cell.task) != cell.identity["task_sha256"]:
        raise UsageError(
            f"{cell.task}: the task was changed after it was rendered, so this is no longer cell {cell.id}\n"
            "  start a new run for the changed task, or restore the folder"
        )


def cell_id(identity: dict[str, Any]) -> str:
    """A short name for an identity: the first 12 hex digits of its hash."""
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:12]


def differences(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """What changed between two identities, a line each."""
    keys = sorted(old.keys() | new.keys())
    return [f"{key}: {old.get(key)!r} -> {new.get(key)!r}" for key in keys if old.get(key) != new.get(key)]


class _Dumper(yaml.CSafeDumper):
    """Writes everything out: a person reads it, and no `&id001` is of use to them."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def write_cell(
    folder: Path, config: Config, plain: dict[str, Any], identity: dict[str, Any], overrides: list[str]
) -> Cell:
    """Write cell.yaml from the configuration as plain data without secrets, and return the cell."""
    content = {
        "schema_version": SCHEMA_VERSION,
        "ptb_runner": _version(),
        "cell_id": cell_id(identity),
        "created_at": now(),
        "overrides": overrides,
        "config": plain,
        "identity": identity,
    }
    _write(folder / "cell.yaml", content)
    return Cell(folder, content["cell_id"], config, identity, overrides)


def _write(path: Path, content: dict[str, Any]) -> None:
    temporary = path.with_name(".cell.yaml.tmp")
    temporary.write_text(yaml.dump(content, Dumper=_Dumper, sort_keys=False, width=120, allow_unicode=True))
    temporary.replace(path)


def set_judge(cell: Cell, plain: dict[str, Any]) -> Cell:
    """Give a cell other judges, which change nothing of what it measures; returns it as it is then."""
    path = cell.folder / "cell.yaml"
    content = _content(path)
    content["config"]["judge"] = plain
    _write(path, content)
    return read_cell(cell.folder)


def read_cell(folder: Path) -> Cell:
    """Read a cell's folder.

    Raises UsageError when it is none, or when a variable that cell.yaml refers to is not set.
    """
    path = folder / "cell.yaml"
    content = _content(path)
    try:
        return Cell(folder, content["cell_id"], typed(content["config"]), content["identity"], content["overrides"])
    except ConfigKeyError as error:
        raise UsageError(unknown_key(str(error.full_key or error.key), f"{path}{_made_by(content)}")) from None
    except OmegaConfBaseException as error:
        reason = str(error.msg if error.msg else error).splitlines()[0]
        raise UsageError(f"{path}{_made_by(content)}: {error.full_key or 'config'}: {reason}") from None


def _content(path: Path) -> dict[str, Any]:
    """What cell.yaml holds; raises UsageError when that is no cell that this version can read."""
    try:
        content = yaml.load(path.read_text(), yaml.CSafeLoader)
    except FileNotFoundError:
        raise UsageError(f"{path.parent}: no cell's folder, it has no cell.yaml") from None
    except (OSError, yaml.YAMLError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: not readable: {str(error).splitlines()[0]}") from None
    kinds = {"cell_id": str, "config": dict, "identity": dict, "overrides": list}
    if not isinstance(content, dict) or not content:
        raise UsageError(f"{path}: is empty, or no table\n  it cannot be restored: start a new run")
    if (schema := content.get("schema_version", SCHEMA_VERSION)) != SCHEMA_VERSION:
        raise UsageError(f"{path}{_made_by(content)}: has format {schema}, this program reads {SCHEMA_VERSION}")
    if bad := [name for name, kind in kinds.items() if not isinstance(content.get(name), kind)]:
        raise UsageError(f"{path}{_made_by(content)}: lacks {', '.join(bad)}, or they are not what they should be")
    return content


def _version() -> str:
    return importlib.metadata.version("ptb-runner")


def _made_by(content: dict[str, Any]) -> str:
    made = content.get("ptb_runner")
    return f" (made by ptb_runner {made}, this is {_version()})" if made and made != _version() else ""


@contextlib.contextmanager
def locked(folder: Path, patience_sec: float = 1.0) -> Iterator[None]:
    """Hold the cell for this process, so that no two runners work on one folder.

    Raises Busy when another runner holds it. The patience is for those that only look: `is_held` has it for a moment.
    """
    from filelock import FileLock, Timeout

    lock = FileLock(folder / ".runner.lock")
    try:
        lock.acquire(timeout=patience_sec)
    except Timeout:
        holder = (read_json(folder / "status.json") or {}).get("launcher", {})
        who = f" (process {holder['pid']} on {holder['host']})" if "pid" in holder else ""
        raise Busy(f"{folder}: another runner is at work on this cell{who}\n  ptb status {folder}") from None
    try:
        yield
    finally:
        lock.release()


def is_held(folder: Path) -> bool:
    """Whether a runner is at work on the cell right now."""
    try:
        with locked(folder, patience_sec=0):
            return False
    except UsageError:
        return True


def write_status(
    cell: Cell,
    state: str,
    outcome: str | None,
    attempts: dict[str, Any],
    *,
    since: dict[str, float] | None = None,
    spent: dict[str, float] | None = None,
    error: str | None = None,
) -> None:
    """Replace status.json.

    `state` is planned, running, finished, cancelled, skipped (a cap was reached) or failed (the runner itself
    failed, `error` says how); `since` is when each running trial entered its phase, in seconds since 1970.
    """
    write_json(
        cell.folder / "status.json",
        {
            "schema_version": SCHEMA_VERSION,
            "cell_id": cell.id,
            "state": state,
            "outcome": outcome,
            "attempts": attempts,
            "since": since or {},
            "spent": spent or {"gpu_hours": 0.0, "usd": 0.0, "trial_sec": 0.0},
            "error": error,
            "launcher": owner(cell),
            "updated_at": now(),
        },
    )


def owner(cell: Cell) -> dict[str, Any]:
    """Who is at work on a cell, when this process is: whom `ptb stop` ends."""
    return {"kind": cell.config.launcher.kind, "pid": os.getpid(), "host": socket.gethostname()}


def mark(cell: Cell, state: str, error: str | None, fewer: int = 0) -> None:
    """Set a cell's state from outside its run (failed, skipped, lost, planned again).

    What it had finished stays counted, but for `fewer` trials that are to be run again.
    """
    before = read_json(cell.folder / "status.json") or {}
    attempts = before.get("attempts") or {"expected": cell.n_trials, "finished": 0, "by_outcome": {}}
    attempts["finished"] = max(attempts["finished"] - fewer, 0)
    write_status(cell, state, before.get("outcome"), attempts | {"running": {}}, spent=before.get("spent"), error=error)


def new_folder(wanted: Path) -> Path:
    """Make a folder that no other run has, also when several start in the same second."""
    wanted.parent.mkdir(parents=True, exist_ok=True)
    for number in range(1, 10_000):
        folder = wanted if number == 1 else wanted.with_name(f"{wanted.name}-{number}")
        try:
            folder.mkdir()
        except FileExistsError:
            continue
        return folder
    raise UsageError(f"{wanted}: no free folder beside it")
