"""Overrides as the user meant them, where Hydra's grammar would read them otherwise."""

from __future__ import annotations

import re
from typing import get_args, get_origin

from ptb_runner import explain

# What Hydra takes for a number or a truth value.
_NOT_TEXT = r"(?:[\d._eE+-]+|0x[0-9a-fA-F]+|true|false|on|off|yes|no|nan|inf)"


def as_meant(argument: str) -> str:
    """The override to give to Hydra for what was typed; anything that is no override comes back as it is.

    Hydra reads `agent.version=1.10` as the number 1.1: a value for a text option is quoted here when it looks
    like another type, also in a sweep (`agent.version=1.9,1.10`). New entries of a table (agent.env.X=1) need
    Hydra's `++`.
    """
    argument = re.sub(r"^podman\.", "backend.", argument)  # as people say it who have read of podman.nested
    if argument.startswith("parity="):
        return f"+{argument}"  # a group without a default: Hydra wants the plus sign, people need not
    found = re.fullmatch(r"(\+{0,2})([\w.-]+)=(.*)", argument, re.DOTALL)
    item = explain.find(found.group(2)) if found else None
    if not found or item is None:
        return argument
    plus, key, value = found.groups()
    is_table = get_origin(item.type) is dict
    kinds = get_args(item.type)[1:] if is_table else (item.type, *get_args(item.type))
    is_text = str in kinds and get_origin(item.type) is not list
    if is_text and re.fullmatch(f"{_NOT_TEXT}(,{_NOT_TEXT})*", value, re.IGNORECASE):
        value = ",".join(f"'{part}'" for part in value.split(","))
    return f"{'++' if is_table else plus}{key}={value}"
