"""Turn a cell into a Harbor task folder.

A rendered task is a stack of layers: folders of templates/ (or of one's own) copied over each other.
Files ending in .j2 are filled in by Jinja2 and lose the suffix; all others are copied as they are.
"""

from __future__ import annotations

import functools
import json
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ptb_runner import dataset, test_data, upstream
from ptb_runner.budget import agent_hours, item_limit
from ptb_runner.config import Config, ContentKind, TryConfig, task_env_vars
from ptb_runner.explain import UsageError
from ptb_runner.paths import TEMPLATES
from ptb_runner.times import duration

if TYPE_CHECKING:
    import jinja2


EVALUATE = ["python3", "-I", "/tests/evaluate.py"]
NPM = {
    "claude-code": "@anthropic-ai/claude-code",
    "codex": "@openai/codex",
    "gemini-cli": "@google/gemini-cli",
    "opencode": "opencode-ai",
}


def render(config: Config, task: Path) -> None:
    """Write the task folder of a cell to `task`, which must not exist yet; of a dataset, a folder a task below it.

    Raises UsageError when a template asks for something that the configuration does not have, or when a dataset
    cannot be fetched.
    """
    if dataset.is_dataset(config.benchmark):
        for name, folder in dataset.tasks(config.benchmark).items():
            _copy(folder, task / name)
        return
    if config.benchmark.path:
        _copy(Path(config.benchmark.path), task)
        return
    task.mkdir(parents=True)
    for layer in [*config.benchmark.layers, *config.model.layers, *_kit(config)]:
        _lay(TEMPLATES / layer, task, config)
    test_data.give(config, task)
    if config.content.kind is ContentKind.upstream:
        upstream.lay(config, task)
    if (task / "environment" / "Dockerfile").is_file() and (task / "tools").is_dir():
        shutil.copytree(task / "tools", task / "environment" / "image" / "tools")  # for backends without mounts
    theirs = config.content.kind is ContentKind.upstream  # what they share, upstream.lay has put on both sides
    for name in config.benchmark.shared:
        if not theirs or (task / "environment" / name).exists():
            _share(task, name)


def _copy(folder: Path, target: Path) -> None:
    shutil.copytree(folder, target, symlinks=True, ignore=shutil.ignore_patterns(".git", "__pycache__"))


def _kit(config: Config) -> list[str]:
    """The layer with the check against contamination, which is of use only beside the test items."""
    return ["decontamination"] if test_data.given(config) else []


def _lay(layer: Path, task: Path, config: Config) -> None:
    for source in sorted(layer.rglob("*")):
        if not source.is_file() or "__pycache__" in source.parts:
            continue
        target = task / source.relative_to(layer)
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.suffix == ".j2":
            target = target.with_suffix("")
            target.write_text(filled(source, config))
        else:
            shutil.copyfile(source, target)
        # Only the executable bit: a checkout's umask must not change a task's content.
        target.chmod(0o755 if source.stat().st_mode & 0o100 else 0o644)


def filled(template: Path, config: Config) -> str:
    """The text of a template for a cell; raises UsageError when it asks for something that there is not."""
    import jinja2

    try:
        return _templates(template.parent).get_template(template.name).render(_context(config))
    except jinja2.TemplateError as error:
        raise UsageError(f"{template}: {error}") from None


@functools.cache
def _templates(folder: Path) -> jinja2.Environment:
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader([folder, TEMPLATES]),  # includes are named from TEMPLATES
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["toml"] = json.dumps  # TOML's basic strings, numbers and arrays are written as JSON's
    environment.filters["duration"] = duration
    return environment


def _share(task: Path, name: str) -> None:
    """Give tests/ its own copy of a file or folder of environment/, so that the verifier never reads the agent's.

    A file that a layer put into tests/ stays: it is the verifier's version.
    """
    source, target = task / "environment" / name, task / "tests" / name
    if not source.exists():
        raise UsageError(f"benchmark.shared: environment/ has no file {name!r}\n  it has: {_names(source.parent)}")
    for path in [source] if source.is_file() else sorted(source.rglob("*")):
        copy = target / path.relative_to(source) if path != source else target
        if path.is_file() and not copy.exists():
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, copy)


def _names(folder: Path) -> str:
    return ", ".join(sorted(path.name for path in folder.iterdir())) if folder.is_dir() else "nothing"


def _context(config: Config) -> dict[str, Any]:
    """What templates can name."""
    benchmark, model = config.benchmark, config.model
    hours = agent_hours(config) or 0.0
    return {
        "benchmark": benchmark,
        "model": model,
        "agent": config.agent,
        "budget": config.budget,
        "pins": config.pins,
        "clis": clis(config),
        "items": item_limit(config),
        "task_env_vars": task_env_vars(config),
        "full_budget": hours == (benchmark.agent_hours or 0.0) and item_limit(config) == -1,
        "gpu_names": [name.rstrip("!") for name in benchmark.gpu_types],  # `H100!` is Modal's "nothing else"
        "for_claude": "claude" in f"{config.agent.id} {config.agent.name}",
        "decontamination": test_data.given(config),
        # Harbor takes letters, digits, dots, dashes and underscores.
        "task_name": re.sub(r"[^A-Za-z0-9._-]+", "-", f"{benchmark.id}-{model.id}").strip("-._") or "task",
        "title": benchmark.title or benchmark.id,
        "model_title": model.title or model.id,
        "agent_hours": hours,
        "agent_sec": round(hours * 3600, 3),
        "verifier_sec": round((benchmark.verifier_hours or 0.0) * 3600, 3),
        "build_sec": round(benchmark.build_hours * 3600, 3),
        "network_mode": "no-network" if benchmark.network.name == "none" else "public",
        "seed": config.seed,
        "verifier_settings": json.dumps(verifier_settings(config), indent=2) + "\n",
        "benchmark_settings": json.dumps(benchmark_settings(config), indent=2) + "\n",
    }


def clis(config: Config) -> dict[str, str]:
    """The npm packages of the agents' CLIs that the image holds, with a version or `latest`."""
    versions = dict(config.pins.clis)
    if config.agent.name in versions:
        versions[config.agent.name] = config.agent.version or "latest"
    return {NPM[name]: version for name, version in versions.items() if name in NPM}


def benchmark_settings(config: Config) -> dict[str, Any]:
    """What evaluate.py is told, in benchmark.json beside it."""
    evaluation, benchmark = config.benchmark.evaluation, config.benchmark
    names = ("task", "task_args", "data", "max_tokens", "max_model_len", "max_connections", "gpu_memory_utilization")
    names += ("tool_parser", "epochs", "max_errors")
    grader = {name: value for name, value in vars(evaluation.grader).items() if value is not None}
    return {
        "id": benchmark.id,
        "title": benchmark.title or benchmark.id,
        **{name: getattr(evaluation, name) for name in names},
        "limit": evaluation.quick_limit,
        "grader": grader if evaluation.grader.model else None,
    }


def verifier_settings(config: Config) -> dict[str, Any]:
    """What the verifier of a post_train task is told, in tests/verifier.json."""
    evaluation = config.benchmark.evaluation
    return {
        "benchmark": config.benchmark.id,
        "handoff": "/handoff",
        "logs": "/logs/verifier",
        "evaluate": upstream.EVALUATE if config.content.kind is ContentKind.upstream else EVALUATE,
        "tries": [rung for one in evaluation.tries or [TryConfig()] for rung in _rungs(one)],
        "try_timeout_sec": round(evaluation.try_timeout_hours * 3600, 3),
        "metric": "accuracy",
        "limit": item_limit(config),
        "identity": config.model.identity,
    }


def _rungs(one: TryConfig) -> list[Any]:
    """A rung as the verifier reads it: its arguments once a try, or a table where it has a time limit of its own."""
    if one.timeout_hours is None:
        return [one.args] * one.count
    return [{"count": one.count, "args": one.args, "timeout_sec": round(one.timeout_hours * 3600, 3)}]
