"""The menu that conf/ is: its groups, their choices, and the line that describes each."""

from __future__ import annotations

import os
from pathlib import Path

from ptb_runner.config import GROUPS

GROUP_HELP = {
    "benchmark": "what the agent is asked to do",
    "model": "the model that is post-trained",
    "agent": "who does it",
    "backend": "the sandboxes it is done in",
    "budget": "how much of the benchmark: hours, items",
    "content": "where a post-training benchmark's prompt and evaluation come from",
    "pins": "versions in the images",
    "judge": "LLMs that look for cheating in what each trial left",
    "launcher": "where the runner's own process lives",
    "parity": "settings of published runs, to be compared with them",
    "experiment": "several choices and options under one name",
}


def groups(conf_dirs: list[str]) -> list[str]:
    """The groups of the schema, then any other that a folder of `conf_dirs` holds (experiment, parity ...)."""
    found = {entry.name for folder in conf_dirs for entry in Path(folder).glob("*/") if entry.is_dir()}
    return [*GROUPS, *sorted(found - set(GROUPS) - {"hydra"})]


def choices(group: str, conf_dirs: list[str]) -> list[str]:
    """The choices of one group, sorted."""
    return sorted({path.stem for folder in conf_dirs for path in Path(folder, group).glob("*.yaml")})


def file_of(name: str, conf_dirs: list[str]) -> Path | None:
    """The file behind a configuration's name such as `agent/oracle`; the first folder that has it wins."""
    paths = (Path(folder, f"{name}.yaml") for folder in conf_dirs)
    return next((path for path in paths if os.path.isfile(path)), None)  # noqa: PTH113 - bears names too long for files


def line(group: str, choice: str, conf_dirs: list[str]) -> str:
    """What a choice is, in a line: the first comment of its file that is no directive."""
    path = file_of(f"{group}/{choice}", conf_dirs)
    for text in path.read_text().splitlines() if path else ():
        comment = text.removeprefix("#").strip()
        if not text.startswith("#"):
            break
        if comment and not comment.startswith("@package") and not comment.endswith(".yaml"):
            return comment
    return ""
