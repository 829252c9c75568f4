"""Turn a cell into a Harbor task folder.

A rendered task is a stack of layers: folders of templates/ (or of one's own) copied over each other.
Files ending in .j2 are filled in by Jinja2 and lose the suffix; all others are copied as they are.
"""

from __future__ import annotations

import functools
import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ptb_runner.config import Config
from ptb_runner.explain import UsageError
from ptb_runner.paths import TEMPLATES

if TYPE_CHECKING:
    import jinja2


def render(config: Config, task: Path) -> None:
    """Write the task folder of a cell to `task`, which must not exist yet.

    Raises UsageError when a template asks for something that the configuration does not have.
    """
    if config.benchmark.path:
        shutil.copytree(
            config.benchmark.path, task, symlinks=True, ignore=shutil.ignore_patterns(".git", "__pycache__")
        )
        return
    task.mkdir(parents=True)
    for layer in [*config.benchmark.layers, *config.model.layers]:
        _lay(TEMPLATES / layer, task, config)
    for name in config.benchmark.shared:
        _share(task, name)


def _lay(layer: Path, task: Path, config: Config) -> None:
    for source in sorted(layer.rglob("*")):
        if not source.is_file() or "__pycache__" in source.parts:
            continue
        target = task / source.relative_to(layer)
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.suffix == ".j2":
            target = target.with_suffix("")
            target.write_text(_filled(source, config))
        else:
            shutil.copyfile(source, target)
        # Only the executable bit: a checkout's umask must not change a task's content.
        target.chmod(0o755 if source.stat().st_mode & 0o100 else 0o644)


def _filled(template: Path, config: Config) -> str:
    import jinja2

    try:
        return _templates(template.parent).get_template(template.name).render(_context(config))
    except jinja2.TemplateError as error:
        raise UsageError(f"{template}: {error}") from None


@functools.cache
def _templates(folder: Path) -> jinja2.Environment:
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(folder),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["toml"] = json.dumps  # TOML's basic strings, numbers and arrays are written as JSON's
    environment.filters["duration"] = duration
    return environment


def _share(task: Path, name: str) -> None:
    """Give tests/ its own copy of a file of environment/, so that the verifier never reads the agent's."""
    source, target = task / "environment" / name, task / "tests" / name
    if not source.is_file():
        raise UsageError(f"benchmark.shared: environment/ has no file {name!r}\n  it has: {_names(source.parent)}")
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy2(source, target)


def _names(folder: Path) -> str:
    return ", ".join(sorted(path.name for path in folder.iterdir())) if folder.is_dir() else "nothing"


def agent_hours(config: Config) -> float | None:
    """Hours that the agent has: one value for the prompt, the timer and Harbor's limit. None: the task's own."""
    return config.benchmark.agent_hours if config.agent.timeout_hours is None else config.agent.timeout_hours


def duration(hours: float) -> str:
    """Hours as people say them: `10 hours`, `1 hour`, `30 minutes`, `1 hour 30 minutes`, `45 seconds`."""
    seconds = round(hours * 3600)
    parts = [(seconds // 3600, "hour"), (seconds // 60 % 60, "minute")]
    if seconds < 3600:
        parts.append((seconds % 60, "second"))
    return " ".join(f"{count} {unit}{'s' if count != 1 else ''}" for count, unit in parts if count) or "no time"


def _context(config: Config) -> dict[str, Any]:
    """What templates can name."""
    benchmark, model = config.benchmark, config.model
    hours = agent_hours(config) or 0.0
    return {
        "benchmark": benchmark,
        "model": model,
        "title": benchmark.title or benchmark.id,
        "model_title": model.title or model.id,
        "agent_hours": hours,
        "agent_sec": round(hours * 3600, 3),
        "verifier_sec": round((benchmark.verifier_hours or 0.0) * 3600, 3),
        "build_sec": round(benchmark.build_hours * 3600, 3),
        "network_mode": "no-network" if benchmark.network.name == "none" else "public",
        "seed": config.seed,
        "verifier_settings": json.dumps(verifier_settings(config), indent=2) + "\n",
    }


def verifier_settings(config: Config) -> dict[str, Any]:
    """What the verifier of a post_train task is told, in tests/verifier.json."""
    evaluation = config.benchmark.evaluation
    return {
        "benchmark": config.benchmark.id,
        "handoff": "/handoff",
        "logs": "/logs/verifier",
        "evaluate": ["python3", "-I", "/tests/evaluate.py"],
        "tries": evaluation.tries,
        "try_timeout_sec": round(evaluation.try_timeout_hours * 3600, 3),
        "metric": "accuracy",
        "limit": evaluation.limit,
        "identity": config.model.identity,
    }
