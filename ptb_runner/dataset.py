"""The tasks of a Harbor dataset: found in a registry or a folder, chosen by name, downloaded once.

What a cell runs is its own copy of them, in `task/<name>/`: a dataset that changes later changes no cell.
"""

from __future__ import annotations

import asyncio
import functools
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ptb_runner.config import BenchmarkConfig
from ptb_runner.explain import UsageError, nearest

if TYPE_CHECKING:
    from harbor.models.trial.config import TaskConfig


def is_dataset(benchmark: BenchmarkConfig) -> bool:
    """Whether the benchmark is a set of Harbor tasks rather than one."""
    return bool(benchmark.dataset) or (bool(benchmark.path) and is_folder_of_tasks(Path(benchmark.path or "")))


def is_folder_of_tasks(folder: Path) -> bool:
    """Whether tasks lie in the folder, each in a folder of its own."""
    return not (folder / "task.toml").exists() and any(folder.glob("*/task.toml"))


def folders(task: Path) -> list[Path]:
    """The Harbor tasks of a cell: its task folder, or the tasks in it."""
    return [task] if (task / "task.toml").exists() else sorted(path.parent for path in task.glob("*/task.toml"))


def tasks(benchmark: BenchmarkConfig) -> dict[str, Path]:
    """The chosen tasks' folders by name; those of a registry are downloaded into Harbor's cache.

    Raises UsageError when the dataset cannot be found or fetched, or when no task is chosen.
    """
    return _tasks(
        benchmark.path,
        benchmark.dataset,
        benchmark.registry_path,
        benchmark.registry_url,
        tuple(benchmark.include),
        tuple(benchmark.exclude),
        benchmark.n_tasks,
    )


@functools.cache  # the cells of a sweep share a dataset
def _tasks(
    path: str | None,
    dataset: str | None,
    registry_path: str | None,
    registry_url: str | None,
    include: tuple[str, ...],
    exclude: tuple[str, ...],
    n_tasks: int | None,
) -> dict[str, Path]:
    from harbor.models.job.config import DatasetConfig

    chosen: dict[str, Any] = {
        "task_names": list(include) or None,
        "exclude_task_names": list(exclude) or None,
        "n_tasks": n_tasks,
    }
    what = f"benchmark.dataset={dataset}" if dataset else f"benchmark.path={path}"
    if dataset:
        name, _, version = dataset.partition("@")
        source = {
            "name": name,
            "version": version or None,
            "registry_path": registry_path,
            "registry_url": registry_url,
        }
    else:
        source = {"path": path}
    config = DatasetConfig.model_validate(source | chosen)
    try:
        found = asyncio.run(_fetched(config, Path(registry_path).parent if registry_path else Path()))
    except Exception as error:  # of an HTTP client, a database's client, git
        raise UsageError(f"{what}: {_reason(error)}") from error
    if not found:
        raise UsageError(f"{what}: no task is left after benchmark.exclude\n  loosen it, or leave it out")
    return found


def _reason(error: Exception) -> str:
    cause: BaseException = error
    while before := cause.__cause__ or cause.__context__:
        cause = before
    first = (str(cause).strip().splitlines() or [type(cause).__name__])[0]
    if cause is error and isinstance(error, ValueError | FileNotFoundError):
        return first[:600]
    hint = "is the registry reachable? One of your own: benchmark.registry_path=FILE, or benchmark.path=DIR"
    return f"cannot be fetched: {type(cause).__name__}: {first[:400]}\n  {hint}"


async def _fetched(config: Any, registry_folder: Path) -> dict[str, Path]:
    from harbor.job_plan import JobPlan

    configs: list[TaskConfig] = await config.get_task_configs()
    for task in configs:
        # A registry file names tasks of its own machine from where it lies.
        if task.path and not task.git_url and not task.path.is_absolute() and config.registry_path:
            task.path = registry_folder / task.path
    downloaded = await JobPlan.cache_tasks(configs)
    places: dict[str, Path] = {}
    for task in configs:
        task_id = task.get_task_id()
        places[_free(_folder_name(task_id.get_name()), places)] = downloaded[task_id].path
    return places


def _folder_name(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name.split("/")[-1]).strip("-.")[:80] or "task"


def _free(name: str, taken: dict[str, Path]) -> str:
    """The name, numbered if another task of the dataset has it already."""
    return next(one for one in (name, *(f"{name}-{n}" for n in range(2, 10_000))) if one not in taken)


# --- What can be said offline -------------------------------------------------------------------------


def problems(benchmark: BenchmarkConfig) -> Iterator[str]:
    """What is wrong with the choice of a dataset, as far as that can be seen without fetching anything."""
    if not is_dataset(benchmark):
        for name in ("registry_path", "registry_url", "include", "exclude", "n_tasks"):
            if getattr(benchmark, name):
                yield f"benchmark.{name}: only for a dataset\n  type benchmark.dataset=NAME@VERSION with it"
        return
    if not benchmark.dataset:
        return
    if not re.fullmatch(r"[\w.-]+(/[\w.-]+)?(@[\w.:-]+)?", benchmark.dataset):
        yield f"benchmark.dataset={benchmark.dataset}: not of the form NAME@VERSION\n  for example terminal-bench@2.0"
    if benchmark.registry_path and benchmark.registry_url:
        yield "benchmark.registry_path and benchmark.registry_url are both set\n  keep one"
    if benchmark.registry_path:
        yield from _in_registry(benchmark.dataset, Path(benchmark.registry_path))


def _in_registry(dataset: str, registry: Path) -> Iterator[str]:
    try:
        rows = json.loads(registry.read_text())
        known = sorted(f"{row['name']}@{row['version']}" for row in rows)
    except OSError as error:
        yield f"benchmark.registry_path={registry}: cannot be read: {error.strerror}"
    except (ValueError, TypeError, KeyError) as error:
        yield f"{registry}: no registry of Harbor's form: {type(error).__name__}: {error}"
    else:
        if dataset not in known and dataset not in {name.partition("@")[0] for name in known}:
            guess = nearest(dataset, known)
            hint = f"did you mean {guess}?" if guess else f"it has: {', '.join(known[:20])}"
            yield f"benchmark.dataset={dataset}: is not in {registry}\n  {hint}"
