"""sweep.yaml: every cell of a sweep, with its number, id, overrides and folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from ptb_runner.cell import SCHEMA_VERSION, Cell, now
from ptb_runner.explain import UsageError


def read_sweep(folder: Path) -> dict[str, Any]:
    """The content of sweep.yaml. Raises UsageError when the folder is no sweep's."""
    path = folder / "sweep.yaml"
    try:
        return yaml.load(path.read_text(), yaml.CSafeLoader)
    except FileNotFoundError:
        raise UsageError(f"{folder}: no sweep's folder, it has no sweep.yaml") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: not readable: {error}") from None


def write_sweep(folder: Path, before: list[dict[str, Any]], prepared: list[Cell]) -> None:
    """Write sweep.yaml: the cells that were in it before, and those prepared now."""
    entries = {entry["number"]: entry for entry in before}
    for cell in prepared:
        number = int(cell.folder.name)
        entries[number] = {
            "number": number,
            "id": cell.id,
            "overrides": cell.overrides,
            "folder": cell.folder.name,
            "benchmark": cell.config.benchmark.id,
            "model": cell.config.model.id,
            "agent": cell.config.agent.id,
            "backend": cell.config.backend.kind,
        }
    content = {
        "schema_version": SCHEMA_VERSION,
        "updated_at": now(),
        "launcher": prepared[0].config.launcher.kind,
        "cells": [entries[number] for number in sorted(entries)],
    }
    temporary = folder / ".sweep.yaml.tmp"
    temporary.write_text(yaml.dump(content, Dumper=yaml.CSafeDumper, sort_keys=False, allow_unicode=True))
    temporary.replace(folder / "sweep.yaml")
