"""How an option is declared."""

from __future__ import annotations

import copy
import dataclasses
from dataclasses import field
from typing import Any


def option(
    default: Any,
    help: str,
    *,
    result: bool = True,
    least: float | None = None,
    above: float | None = None,
    most: float | None = None,
) -> Any:
    """Declare one option.

    `least` and `most` are inclusive bounds, `above` an exclusive one. `result` says whether the option
    can change a score and so belongs to a cell's identity.
    """
    metadata = {"help": help, "result": result, "least": least, "above": above, "most": most}
    if isinstance(default, list | dict) or dataclasses.is_dataclass(default):
        make = default if isinstance(default, type) else lambda: copy.deepcopy(default)
        return field(default_factory=make, metadata=metadata)
    return field(default=default, metadata=metadata)
