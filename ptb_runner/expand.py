"""From one command line to the overrides of each cell of a sweep."""

from __future__ import annotations

import itertools
import shlex
from collections.abc import Iterator
from pathlib import Path

from hydra.core.config_loader import ConfigLoader
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf import DictConfig

from ptb_runner.explain import UsageError, nearest
from ptb_runner.overrides import as_meant

MOST_CELLS = 20_000


def expand(arguments: list[str], settings: DictConfig, loader: ConfigLoader | None = None) -> list[list[str]]:
    """The overrides of each cell.

    Every `key=a,b` is an axis, and cells are all combinations. The keys of one group of `sweep.zip` go together,
    first with first, second with second. Each line of `sweep.file` is one cell more, or less, of that product.
    Raises UsageError when the groups do not fit.
    """
    axes = _axes(arguments, loader)
    for group in settings.zip:
        axes = _zipped(axes, list(group))
    product = [list(itertools.chain(*combination)) for combination in itertools.product(*axes.values())]
    rows = list(_rows(Path(settings.file))) if settings.file else [[]]
    found = [_merged(combination, row) for combination in product for row in rows]
    if len(found) > MOST_CELLS:
        raise UsageError(f"the sweep has {len(found)} cells, more than {MOST_CELLS}\n  split it into several")
    return found


def _axes(arguments: list[str], loader: ConfigLoader | None) -> dict[str, list[tuple[str, ...]]]:
    axes: dict[str, list[tuple[str, ...]]] = {}
    # The loader is for glob(*), which asks what choices there are.
    for override in OverridesParser.create(config_loader=loader).parse_overrides(arguments):
        typed_key = override.get_key_element()
        key = typed_key.lstrip("+~")
        if key.startswith("sweep."):
            continue
        if not override.is_sweep_override():
            axes[key] = [(str(override.input_line),)]
        elif override.is_discrete_sweep():
            axes[key] = [(f"{typed_key}={value}",) for value in override.sweep_string_iterator()]
        else:
            raise UsageError(f"command line: {override.input_line}: an interval cannot be swept\n  list the values")
    return axes


def _zipped(axes: dict[str, list[tuple[str, ...]]], group: list[str]) -> dict[str, list[tuple[str, ...]]]:
    """Join the axes of a group into one, at the place of the first."""
    for key in group:
        if key not in axes:
            guess = nearest(key, axes)
            hint = f"did you mean {guess}?" if guess else f"swept are: {', '.join(axes) or 'none'}"
            raise UsageError(f"sweep.zip: {key!r} is not swept on the command line\n  {hint}")
    lengths = {key: len(axes[key]) for key in group}
    if len(set(lengths.values())) > 1:
        counts = ", ".join(f"{key} has {count}" for key, count in lengths.items())
        raise UsageError(f"sweep.zip: the values of {group} do not pair up: {counts}\n  give each as many values")
    joined = [tuple(itertools.chain(*rows)) for rows in zip(*(axes[key] for key in group), strict=True)]
    return {key: joined if key == group[0] else axis for key, axis in axes.items() if key not in group[1:]}


def _rows(path: Path) -> Iterator[list[str]]:
    """The cells of a file: a line of overrides each, quoted as in a shell; empty lines and # comments are skipped."""
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"sweep.file={path}: cannot be read: {error}") from None
    rows = 0
    for number, line in enumerate(lines, 1):
        try:
            words = [as_meant(word) for word in shlex.split(line, comments=True)]
            overrides = OverridesParser.create().parse_overrides(words)
        except (ValueError, HydraException) as error:
            raise UsageError(f"{path}, line {number}: {str(error).splitlines()[0]}") from None
        if any(override.is_sweep_override() for override in overrides):
            raise UsageError(f"{path}, line {number}: a line is one cell, it cannot sweep\n  write a line for each")
        if words:
            rows += 1
            yield words
    if not rows:
        raise UsageError(f"sweep.file={path}: has no cell\n  each line holds the overrides of one cell")


def _merged(first: list[str], then: list[str]) -> list[str]:
    """Two lists of overrides; where both name a key, the second one's value stands."""
    named = {text.partition("=")[0].lstrip("+~"): text for text in (*first, *then)}
    return list(named.values())
