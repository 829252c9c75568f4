"""Models and data sets of the hub, downloaded once for all sandboxes: `ptb cache hf`.

The cache is a home of the hub's own client (<home>/hub/models--org--name/...), and beside it <home>/complete/ holds a
file for each repository that is there whole. A sandbox sees the complete repositories that its cell needs, read-only,
and a layer of its own over them (templates/sandbox/hf_layer.sh). Nothing but `fill` imports the client.
"""

from __future__ import annotations

import contextlib
import fnmatch
import os
import re
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ptb_runner.cell import read_json, write_json
from ptb_runner.config import Config
from ptb_runner.explain import UsageError
from ptb_runner.paths import cache

READ_ONLY = "/opt/hf-cache"
"""Where a sandbox sees the repositories of the cache."""
HOME = "/var/tmp/huggingface"
"""Where a sandbox's client of the hub keeps what is its own: HF_HOME."""

VOLUME = "hf-hub-cache"
"""Modal's volume, where the configuration names no other."""

_WORKERS = 8
_HEX_COMMIT = re.compile(r"[0-9a-f]{40}")
_HUB_FILE = re.compile(r"hf://datasets/([^/@]+/[^/@]+)(?:@([^/]+))?/(.+)")
# The same weights in other formats: left out where a model comes as safetensors.
_OTHER_FORMATS = ("*.bin", "*.pt", "*.pth", "*.h5", "*.msgpack", "*.onnx", "*.gguf", "*.ckpt", "original/*")


@dataclass(frozen=True)
class Repository:
    """What a cell needs of the hub: a model or data set (`kind`: model, dataset); `files`: only these, empty: all."""

    kind: str
    id: str
    revision: str | None = None
    files: tuple[str, ...] = ()

    @property
    def folder(self) -> str:
        """Its folder's name in a home of the hub's client."""
        return f"{self.kind}s--{self.id.replace('/', '--')}"

    @property
    def key(self) -> str:
        """All of it in a line."""
        return " ".join((self.kind, self.id, self.revision or "main", *self.files))

    @property
    def name(self) -> str:
        """The repository in words."""
        return f"{'data set' if self.kind == 'dataset' else self.kind} {self.id}" + (
            f" at {self.revision}" if self.revision else ""
        )


def wanted(configs: Iterable[Config]) -> list[Repository]:
    """What the cells need of the hub: their models, and the data sets from which their benchmarks are scored."""
    found: dict[tuple[str, str, str | None], set[str] | None] = {}
    for config in configs:
        for one in _of_cell(config):
            key = (one.kind, one.id, one.revision)
            before = found.get(key, set())
            # A part that names no files needs them all.
            found[key] = before | set(one.files) if one.files and before is not None else None
    return [Repository(*key, tuple(sorted(files or ()))) for key, files in found.items()]


def _of_cell(config: Config) -> Iterator[Repository]:
    if config.model.hub_id and config.serve.kind == "none":  # a served one is not the sandboxes'
        yield Repository("model", config.model.hub_id, config.model.revision)
    data = config.benchmark.evaluation.data
    if "path" in data:
        files = tuple(data[name] for name in ("file", "baseline") if name in data)
        yield Repository("dataset", data["path"], data.get("revision"), files)
    held = config.benchmark.test_data
    for found in filter(None, map(_HUB_FILE.fullmatch, held.files)):
        yield Repository("dataset", found[1], found[2], (found[3],) if "file" in data else ())
    if held.source and "/" in held.source:
        yield Repository("dataset", held.source)


# --- What is there ------------------------------------------------------------------------------------


def home(config: Config) -> Path | None:
    """The host folder that a cell's sandboxes see the cache from; None: they see none."""
    chosen = config.backend.hf_cache
    if chosen is None:
        return None
    return cache() / "huggingface" if chosen == "auto" else Path(chosen).expanduser().resolve()


def volume(config: Config) -> str | None:
    """The same for Modal: the name of a volume."""
    return VOLUME if config.backend.hf_cache == "auto" else config.backend.hf_cache


def _is_there(config: Config, repository: Repository) -> bool:
    if config.backend.kind != "modal":
        return held(home(config), repository)
    filled = read_json(_volume_note(volume(config) or "")) or []
    return repository.key in filled


def _volume_note(name: str) -> Path:
    """What this machine knows of a volume: asking Modal takes time, and a plan is made offline."""
    return cache() / "modal_volumes" / f"{name}.json"


def note_volume(name: str, repositories: Iterable[Repository]) -> None:
    """Write down that a volume holds these."""
    path = _volume_note(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    known = read_json(path) or []
    write_json(path, sorted({*known, *(one.key for one in repositories)}))


def held(home: Path | None, repository: Repository) -> bool:
    """Whether a cache holds all that is wanted of a repository; nothing is asked of the hub."""
    if home is None:
        return False
    note = read_json(home / "complete" / f"{repository.folder}.json") or {}
    commit = note.get("refs", {}).get(repository.revision or "main")
    files = note.get("files", {}).get(commit)
    if files is None or (not repository.files and not note["whole"].get(commit)):
        return False
    snapshot = home / "hub" / repository.folder / "snapshots" / commit
    return all(_size(snapshot / name) == files.get(name, -1) for name in repository.files or files)


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except OSError:
        return None


def folders(config: Config) -> list[Path]:
    """The folders of a host's cache that a cell's sandboxes see: those of the repositories that it needs."""
    place = home(config)
    return [place / "hub" / one.folder for one in wanted([config]) if place and held(place, one)]


def describe(config: Config) -> str:
    """For the plan: whether the cache holds what the cell needs."""
    needed = wanted([config])
    if not needed:
        return "nothing needed of the hub"
    if config.backend.hf_cache is None:
        return f"not used: each sandbox downloads {', '.join(one.id for one in needed)}"
    return ", ".join(f"{one.id} ({'there' if _is_there(config, one) else 'missing'})" for one in needed)


def missing(config: Config) -> str | None:
    """What the user may want to do first; None when the cache holds what the cell needs, or is not to be used."""
    absent = [one.id for one in wanted([config]) if not _is_there(config, one)]
    if not absent or config.backend.hf_cache is None:
        return None
    names = f"benchmark={config.benchmark.id} model={config.model.id} backend={config.backend.kind}"
    return f"the cache lacks {', '.join(absent)}, each sandbox downloads it anew; first: ptb cache hf {names}"


def section(config: Config) -> dict[str, Any]:
    """What a backend adds to Harbor's `environment`: what of the cache to see, and where the client finds it."""
    if config.backend.kind == "modal":
        there = config.backend.hf_cache and any(_is_there(config, one) for one in wanted([config]))
        found = {"hf_cache": volume(config)} if there else {}
    else:
        there = folders(config)
        found = {"hf_repositories": [str(one) for one in there]}
    return {"kwargs": found, "env": {"HF_HOME": HOME}} if there else {}


# --- Downloading --------------------------------------------------------------------------------------


@dataclass
class Progress:
    """How far the download of a repository is, in bytes; `total` is what was missing at its start."""

    name: str
    total: int
    done: int = 0
    over: bool = False


def fill_host(config: Config, wanted: list[Repository], show: Callable[[Progress], Any]) -> str:
    """Fill the host folder of a cell's backend, and return its path."""
    place = home(config)
    assert place is not None
    for one in wanted:
        fill(place, one, show)
    return str(place)


def fill(home: Path, repository: Repository, show: Callable[[Progress], Any] = lambda _: None) -> int:
    """Download what a cache lacks of a repository, and return how many bytes that were; what is there stays.

    `show` is told how far it is about once a second. May be stopped at any time: files that were finished are kept.
    Raises UsageError when the hub refuses or cannot be reached.
    """
    if held(home, repository) and _HEX_COMMIT.fullmatch(repository.revision or ""):
        show(Progress(repository.name, 0, over=True))  # a commit never changes: nothing to ask
        return 0
    home.mkdir(parents=True, exist_ok=True)
    with _told(repository):
        commit, files = _listing(repository)
        chosen = _chosen(repository, files)
        snapshot = home / "hub" / repository.folder / "snapshots" / commit
        absent = {name: size for name, size in chosen.items() if _size(snapshot / name) != size}
        progress = Progress(repository.name, sum(absent.values()))
        with _watched(home / "hub" / repository.folder, progress, show):
            _download(home, repository, commit, list(absent))
        _note(home, repository, commit, chosen)
    return progress.total


def _listing(repository: Repository) -> tuple[str, dict[str, int]]:
    """The commit that a revision names now, and the sizes of its files."""
    from huggingface_hub import HfApi
    from huggingface_hub.hf_api import RepoFile

    hub = HfApi()
    where: dict[str, Any] = {"repo_type": repository.kind}
    commit = hub.repo_info(repository.id, revision=repository.revision, **where).sha
    tree = hub.list_repo_tree(repository.id, recursive=True, revision=commit, **where)
    return str(commit), {one.path: one.size for one in tree if isinstance(one, RepoFile)}


def _chosen(repository: Repository, files: dict[str, int]) -> dict[str, int]:
    """The files to download."""
    if absent := [name for name in repository.files if name not in files]:
        raise UsageError(f"{repository.name}: the hub has no file {', '.join(absent)} in it")
    if repository.files:
        return {name: files[name] for name in repository.files}
    if repository.kind == "model" and any(name.endswith(".safetensors") for name in files):
        others = [name for name in files if any(fnmatch.fnmatch(name, pattern) for pattern in _OTHER_FORMATS)]
        return {name: size for name, size in files.items() if name not in others}
    return files


def _download(home: Path, repository: Repository, commit: str, names: list[str]) -> None:
    from concurrent.futures import ThreadPoolExecutor

    from huggingface_hub import hf_hub_download
    from huggingface_hub.utils import disable_progress_bars

    disable_progress_bars()  # one for each file and each thread: ours counts them all

    def fetch(name: str) -> None:
        hf_hub_download(repository.id, name, repo_type=repository.kind, revision=commit, cache_dir=home / "hub")

    with ThreadPoolExecutor(_WORKERS) as pool:
        try:
            for _ in pool.map(fetch, names):
                pass
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _note(home: Path, repository: Repository, commit: str, files: dict[str, int]) -> None:
    """Write down that this is there, and which commit the revision names, as the hub's client does."""
    path = home / "complete" / f"{repository.folder}.json"
    path.parent.mkdir(exist_ok=True)
    note = read_json(path) or {"refs": {}, "files": {}, "whole": {}}
    revision = repository.revision or "main"
    note["refs"][revision] = commit
    note["files"][commit] = note["files"].get(commit, {}) | files
    note["whole"][commit] = note["whole"].get(commit, False) or not repository.files
    if revision != commit:
        ref = home / "hub" / repository.folder / "refs" / revision
        ref.parent.mkdir(parents=True, exist_ok=True)
        ref.write_text(commit)
    write_json(path, note)


@contextlib.contextmanager
def _watched(folder: Path, progress: Progress, show: Callable[[Progress], Any]) -> Iterator[None]:
    """Tell how the folder grows, from a thread, for as long as this lasts."""
    before, over = _bytes(folder), threading.Event()

    def look() -> None:
        while not over.wait(1.0):
            progress.done = min(_bytes(folder) - before, progress.total)
            show(progress)

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield
        # Of a new commit's files most are often the old ones, under another commit: those were not downloaded.
        progress.total = progress.done = _bytes(folder) - before
        progress.over = True
    finally:
        over.set()
        thread.join()
        show(progress)


def _bytes(folder: Path) -> int:
    return sum(_size(path) or 0 for path in folder.glob("blobs/*"))


@contextlib.contextmanager
def _told(repository: Repository) -> Iterator[None]:
    """The hub's errors are of many kinds, and long; a user needs a line and what to do."""
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError

    token = "a token that may read it" if os.environ.get("HF_TOKEN") else "HF_TOKEN"
    try:
        yield
    except UsageError:
        raise
    except GatedRepoError as error:
        page = f"{'datasets/' if repository.kind == 'dataset' else ''}{repository.id}"
        raise UsageError(
            f"{repository.name}: is gated, and needs {token}\n"
            f"  accept its terms on the hub's page {page}, then export HF_TOKEN=..."
        ) from error
    except RevisionNotFoundError as error:
        raise UsageError(f"{repository.name}: the hub has no such revision\n  see model.revision") from error
    except RepositoryNotFoundError as error:
        raise UsageError(
            f"{repository.name}: the hub has none, or it is private\n  private ones need {token}"
        ) from error
    except Exception as error:
        said = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
        raise UsageError(
            f"{repository.name}: cannot be downloaded: {said}\n  type the same command again: what is finished is kept"
        ) from error
