"""How a cell's settings stand to those of published runs (`+parity=NAME`), and the record of it, parity.json.

A file of conf/parity/ holds every setting of the reference twice with one text: YAML anchors put the tree under
`parity.reference` and apply it. What is laid over it afterwards wins, and shows up as not equal.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any

from ptb_runner.budget import agent_hours, item_limit
from ptb_runner.config import Config


def report(config: Config, task: Path) -> dict[str, Any]:
    """The content of parity.json: each setting of the reference, what is used, and the hash of the prompt."""
    rows = [
        {"setting": key, "reference": wanted, "used": (used := _used(config, key)), "equal": used == wanted}
        for key, wanted in settings(config)
    ]
    return {
        "reference": config.parity.id,
        "title": config.parity.title,
        "margin": config.parity.margin,
        "equal": all(row["equal"] for row in rows),
        "settings": rows,
        "prompt_sha256": hashlib.sha256((task / "instruction.md").read_bytes()).hexdigest(),
    }


def settings(config: Config) -> list[tuple[str, Any]]:
    """Every setting of the reference that concerns this cell, as key and value.

    `agents.<id>` and `pins.clis.<name>` hold those of every agent: only the cell's own count.
    """
    found = []
    for key, value in _flat(config.parity.reference, ""):
        group, *rest = key.split(".")
        if group == "agents":
            if rest[0] == config.agent.id:
                found.append((".".join(["agent", *rest[1:]]), value))
        elif not key.startswith("pins.clis.") or key == f"pins.clis.{config.agent.name}":
            found.append((key, value))
    return found


def deviations(config: Config) -> Iterator[str]:
    """What is not as in the reference, a line each."""
    for key, wanted in settings(config):
        used = _used(config, key)
        if used != wanted:
            yield f"parity {config.parity.id}: {key} is {'unset' if used is None else used}, the reference has {wanted}"


def _flat(tree: dict[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for name, value in tree.items():
        if isinstance(value, dict) and value:
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _used(config: Config, key: str) -> Any:
    """What the cell does about a setting, in plain data; None for what this program has no option for."""
    if key == "budget.hours":
        return agent_hours(config)
    if key == "budget.limit":
        return item_limit(config)
    if key == f"pins.clis.{config.agent.name}":
        return config.agent.version or "latest"
    if key == "content.commit" and config.content.path:
        return None  # a folder is not known to be that commit
    value: Any = plain(config)
    group, *names = key.split(".")
    value = value.get(group)
    while names and isinstance(value, dict):
        name, *names = names
        value = value.get(name)
    return None if names else value


def plain(value: Any) -> Any:
    """Typed configuration as the data that a YAML file would hold."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {item.name: plain(getattr(value, item.name)) for item in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {str(name): plain(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [plain(inner) for inner in value]
    return value.name if isinstance(value, Enum) else value
