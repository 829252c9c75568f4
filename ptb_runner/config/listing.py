"""The options one by one, with their keys, types, bounds and meanings: for checks, help and docs."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any, get_args, get_origin, get_type_hints

from omegaconf import DictConfig, OmegaConf

from ptb_runner.config.backend import BACKENDS
from ptb_runner.config.judge import JudgeConfig
from ptb_runner.config.launcher import LAUNCHERS
from ptb_runner.config.schema import Config
from ptb_runner.config.serve import SERVES


@dataclass(frozen=True)
class Option:
    """One option as found in the schema: its full key, type, default and metadata."""

    key: str
    type: Any
    default: Any
    help: str
    result: bool
    least: float | None
    above: float | None
    most: float | None

    @property
    def allowed(self) -> str:
        """The values it takes, in words."""
        optional = type(None) in get_args(self.type)
        kind = next(a for a in get_args(self.type) if a is not type(None)) if optional else self.type
        if isinstance(kind, type) and issubclass(kind, Enum):
            return " | ".join(kind.__members__)
        names = {int: "a whole number", float: "a number", bool: "true | false", str: "text"}
        words = names.get(kind, "a list" if get_origin(kind) is list else "a table")
        bounds = [
            f"{word} {limit:g}"
            for word, limit in (("at least", self.least), ("above", self.above), ("at most", self.most))
            if limit is not None
        ]
        return " ".join([words, " and ".join(bounds)]).strip() + (" or null" if optional else "")

    def violated_by(self, value: Any) -> bool:
        """Whether a number lies outside the bounds."""
        if isinstance(value, bool) or not isinstance(value, int | float):
            return False
        inside = math.isfinite(value) and (
            (self.least is None or value >= self.least)
            and (self.above is None or value > self.above)
            and (self.most is None or value <= self.most)
        )
        return not inside


def options(config: DictConfig | dict[str, Any] | None = None) -> tuple[Option, ...]:
    """Every option of the schema, depth first, in the order of definition.

    Backends, launchers and servers have options of their own: those of the choice made in `config`, or of all
    choices without one.
    """
    return _known_options(_kind(config, "backend"), _kind(config, "launcher"), _kind(config, "serve"))


def _kind(config: DictConfig | dict[str, Any] | None, group: str) -> str | None:
    if isinstance(config, DictConfig):
        return OmegaConf.select(config, f"{group}.kind", throw_on_missing=False)
    return (config or {}).get(group, {}).get("kind")


@functools.cache
def _known_options(backend: str | None, launcher: str | None, serve: str | None) -> tuple[Option, ...]:
    found: dict[str, Option] = {}
    hints = get_type_hints(Config)
    choices = {
        "backend": _classes(BACKENDS, backend),
        "launcher": _classes(LAUNCHERS, launcher),
        "serve": _classes(SERVES, serve),
    }
    for item in dataclasses.fields(Config):
        for cls in choices.get(item.name, [hints[item.name]]):
            for known in _options(item, cls, ""):
                found.setdefault(known.key, known)
    return tuple(found.values())


@functools.cache
def judge_options(judge: str) -> tuple[Option, ...]:
    """The options of one judge of the panel, which is a table of such."""
    hints = get_type_hints(JudgeConfig)
    prefix = f"judge.panel.{judge}."
    return tuple(one for item in dataclasses.fields(JudgeConfig) for one in _options(item, hints[item.name], prefix))


def _classes[T](kinds: dict[str, type[T]], chosen: str | None) -> list[type[T]]:
    return [kinds[chosen]] if chosen in kinds else list(kinds.values())


def _options(item: dataclasses.Field[Any], kind: Any, prefix: str) -> Iterator[Option]:
    if dataclasses.is_dataclass(kind):
        hints = get_type_hints(kind)
        for child in dataclasses.fields(kind):
            yield from _options(child, hints[child.name], f"{prefix}{item.name}.")
        return
    default = item.default if item.default_factory is dataclasses.MISSING else item.default_factory()
    meta = {"help": "", "result": True, "least": None, "above": None, "most": None} | dict(item.metadata)
    yield Option(f"{prefix}{item.name}", kind, default, **meta)
