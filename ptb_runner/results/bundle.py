"""A bundle: a sweep, a cell or any other folder of results in one file, which can be given away and read as it is.

    sweep.tar.gz
        ptb_bundle.json      what it is, how much is in it, what was left out and why
        sweep.yaml, 0/...    the folder's files

Left out are weights unless asked for, large files, links, and what only a running cell needs. Secrets are taken out
once more. The same folder gives the same bytes. A bundle is read file by file into a folder of its own: nothing in it
can name a place outside, and it holds neither links nor anything else that is not a plain file.
"""

from __future__ import annotations

import atexit
import functools
import gzip
import io
import json
import os
import shutil
import stat
import tarfile
import tempfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Any

import yaml

from ptb_runner.cell import SCHEMA_VERSION
from ptb_runner.config import ENV_REFERENCE
from ptb_runner.explain import UsageError
from ptb_runner.results.scrub import Scrubber
from ptb_runner.sweepfile import read_sweep

MANIFEST = "ptb_bundle.json"
KIND = "ptb_runner bundle"
MIB = 2**20

_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".gguf", ".ggml", ".onnx", ".h5", ".npz", ".msgpack")
_MODELS = ("handoff", "final_model")  # folders
_RUNNERS = ("regrading", "superseded", ".runner.lock", "report.html", "__pycache__")


@dataclass(frozen=True)
class Packed:
    """A bundle that was written."""

    path: Path
    size: int
    n_files: int
    left_out: list[dict[str, Any]]
    redacted: list[str]


# --- Writing ----------------------------------------------------------------------------------------


def pack(folder: Path, target: Path, *, with_models: bool = False, max_file_mb: int = 64) -> Packed:
    """Write the bundle of a folder, in place of an earlier one of the same folder.

    Raises UsageError when the target is something else.
    """
    name = folder.resolve().name
    if target.resolve().is_relative_to(folder.resolve()):
        raise UsageError(f"--to {target}: lies in the folder that is packed\n  name a file outside of it")
    _check_ours(target, name)
    left_out: list[dict[str, Any]] = []
    files = list(_chosen(folder, with_models, max_file_mb * MIB, left_out))
    scrubber = Scrubber(_named_secrets(folder))
    manifest = {
        "kind": KIND,
        "schema_version": SCHEMA_VERSION,
        "name": name,
        "files": len(files),
        "models": with_models,
        "left_out": left_out,
    }
    partial = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        redacted = _write(partial, folder, files, manifest, scrubber)
        partial.replace(target)
    except OSError as error:
        raise UsageError(f"{target}: cannot be written: {error.strerror}") from None
    finally:
        partial.unlink(missing_ok=True)
    return Packed(target, target.stat().st_size, len(files), left_out, redacted)


def _check_ours(target: Path, name: str) -> None:
    if not target.exists():
        return
    try:
        with tarfile.open(target, "r:gz") as tar:
            ours = _manifest(tar, target)["name"] == name
    except (tarfile.TarError, OSError, EOFError, zlib.error, UsageError):
        ours = False
    if not ours:
        raise UsageError(f"{target}: is there already and no bundle of {name}\n  name another file with --to")


def _chosen(folder: Path, with_models: bool, most: int, left_out: list[dict[str, Any]]) -> Iterator[Path]:
    """The files that go in, by name, relative to the folder; the others are listed."""
    for path in _below(folder):
        name = path.relative_to(folder)
        found = path.lstat()
        is_model = path.suffix in _WEIGHTS or any(part in _MODELS for part in name.parts)
        if not stat.S_ISREG(found.st_mode):
            reason = "a link, or no plain file"
        elif is_model and not with_models:
            reason = "weights: only with --with-models"
        elif found.st_size > most and not is_model:
            reason = f"larger than {most // MIB} MiB"
        elif not os.access(path, os.R_OK):
            reason = "not readable"
        else:
            yield name
            continue
        left_out.append({"path": name.as_posix(), "bytes": found.st_size, "reason": reason})


def _below(folder: Path) -> Iterator[Path]:
    """All files and links below a folder, in an order that depends on their names alone.

    Of a sweep: its own files and its cells, not what its launcher keeps beside them.
    """
    cells = None
    if (folder / "sweep.yaml").exists():
        cells = {PurePosixPath(cell["folder"]).parts[0] for cell in read_sweep(folder)["cells"]}
    for parent, folders, files in os.walk(folder):
        top = Path(parent) == folder
        links = [name for name in folders if Path(parent, name).is_symlink()]
        folders[:] = sorted(
            name for name in folders if name not in (*_RUNNERS, *links) and not (top and cells and name not in cells)
        )
        for name in sorted([*files, *links]):
            if name not in _RUNNERS and not name.endswith(".tmp"):
                yield Path(parent, name)


def _named_secrets(folder: Path) -> set[str]:
    """The variables that the cells name as their secrets."""
    names: set[str] = set()
    for path in (*folder.glob("cell.yaml"), *folder.glob("*/cell.yaml")):
        text = path.read_text(errors="replace")
        names.update(ENV_REFERENCE.findall(text))
        try:
            names.update(_listed(yaml.load(text, yaml.CSafeLoader)))
        except yaml.YAMLError:
            continue
    return names


def _listed(content: Any) -> Iterator[str]:
    """What stands in `env_vars`, `verifier_env_vars`, `api_key_var` and the like, at any depth."""
    if isinstance(content, dict):
        for key, value in content.items():
            if str(key).endswith("env_vars") and isinstance(value, list):
                yield from (name for name in value if isinstance(name, str))
            elif key == "api_key_var" and isinstance(value, str):
                yield value
            else:
                yield from _listed(value)


def _write(target: Path, folder: Path, files: list[Path], manifest: dict[str, Any], scrubber: Scrubber) -> list[str]:
    """Write the archive; the names of files in which secrets were found."""
    redacted = []
    with (
        target.open("wb") as raw,
        gzip.GzipFile(filename="", fileobj=raw, mode="wb", mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w|", format=tarfile.PAX_FORMAT) as tar,
    ):
        _add(tar, MANIFEST, io.BytesIO((json.dumps(manifest, indent=1) + "\n").encode()))
        for name in files:
            path = folder / name
            if path.suffix in _WEIGHTS:  # too large to be searched, and no text
                with path.open("rb") as file:
                    _add(tar, name.as_posix(), file)
                continue
            content = path.read_bytes()
            clean = scrubber.scrubbed(content)
            redacted += [name.as_posix()] if clean != content else []
            _add(tar, name.as_posix(), io.BytesIO(clean), executable=bool(path.stat().st_mode & 0o100))
    return redacted


def _add(tar: tarfile.TarFile, name: str, file: IO[bytes], executable: bool = False) -> None:
    """A member without owner and times, so that the same content gives the same bytes."""
    member = tarfile.TarInfo(name)
    member.size = file.seek(0, io.SEEK_END)
    member.mode = 0o755 if executable else 0o644
    file.seek(0)
    tar.addfile(member, file)


# --- Reading ----------------------------------------------------------------------------------------


def opened(path: Path) -> Path:
    """The folder of results at `path`: itself, or if it is a bundle its content, for as long as the program runs."""
    if not path.is_file():
        return path
    return _opened(path.resolve(), path.stat().st_mtime_ns)


@functools.cache
def _opened(path: Path, changed: int) -> Path:
    folder = Path(tempfile.mkdtemp(prefix="ptb-bundle-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    try:
        with tarfile.open(path, "r:gz") as tar:
            _manifest(tar, path)
            for member in tar:
                _unpack(tar, member, folder, path)
    except (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise UsageError(f"{path}: not a bundle, or damaged: {error}\n  ptb export DIR --bundle makes one") from None
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror or error}") from None
    return folder


def _manifest(tar: tarfile.TarFile, path: Path) -> dict[str, Any]:
    """The manifest, which comes first."""
    first = tar.next()
    file = tar.extractfile(first) if first and first.isreg() and first.name == MANIFEST else None
    try:
        content = json.loads(file.read(16 * MIB)) if file else None
    except ValueError:
        content = None
    if not isinstance(content, dict) or content.get("kind") != KIND:
        raise UsageError(f"{path}: an archive, but no bundle that `ptb export DIR --bundle` made")
    if (schema := content.get("schema_version")) != SCHEMA_VERSION:
        raise UsageError(f"{path}: a bundle of format {schema}, this program reads {SCHEMA_VERSION}")
    return content


def _unpack(tar: tarfile.TarFile, member: tarfile.TarInfo, folder: Path, path: Path) -> None:
    """Write one member below the folder. Every name stays inside, and nothing is written over or through a link."""
    name = PurePosixPath(member.name)
    if not member.isreg() or name.is_absolute() or ".." in name.parts or "\0" in member.name or not name.parts:
        raise UsageError(f"{path}: holds {member.name!r}, which no bundle of ours does: not read")
    if member.size > shutil.disk_usage(folder).free:
        raise UsageError(f"{path}: does not fit into {folder.parent}\n  set TMPDIR to a folder with more room")
    source = tar.extractfile(member)
    target = folder / name
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("xb") as file:
        shutil.copyfileobj(source, file, MIB)  # type: ignore[arg-type]  # a plain file's is never None
    target.chmod(0o700 if member.mode & 0o100 else 0o600)
