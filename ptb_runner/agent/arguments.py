"""What an agent's class says of its options, before a trial fails by one or ignores it."""

from __future__ import annotations

import inspect
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from ptb_runner.agent import clis
from ptb_runner.config import Config
from ptb_runner.explain import nearest

if TYPE_CHECKING:
    from harbor.agents.base import BaseAgent

_BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
# Harbor's words, after which it names its own command line.
_UNKNOWN = re.compile(r"^  Unknown option '([^']+)'", re.MULTILINE)
_WRONG = re.compile(r"^  ([\w.]+): (.+)$", re.MULTILINE)


def problems(config: Config, found: type[BaseAgent]) -> list[str]:
    """Why every trial's agent of this class would be refused, or would never see an option of its own."""
    unnamed = _unnamed(config, found)
    if unnamed and not _takes_more(found) and not found.options_model:  # Harbor drops them without a word
        return [_no_such(name, config, found) for name in unnamed]
    try:
        _make(config, found)
    except (ValueError, TypeError) as error:
        return [_told(str(error), config, found)]
    return []


def unchecked(config: Config, found: type[BaseAgent]) -> Iterator[str]:
    """The options that a class takes without naming them: it may use them, or never have heard of them."""
    for name in _unnamed(config, found) if _takes_more(found) else ():
        guess = nearest(name, _names(found))
        hint = f" (did you mean {guess}?)" if guess else ""
        yield f"{_key(name, config)}: no argument that {config.agent.import_path} names{hint}; passed on unchecked"


def _parameters(found: type[BaseAgent]) -> Iterator[tuple[bool, inspect.Parameter]]:
    """What the constructors take, from the class's own to the first that passes nothing on; whether it is Harbor's."""
    for constructor in (vars(one)["__init__"] for one in found.__mro__[:-1] if "__init__" in vars(one)):
        parameters = list(inspect.signature(constructor).parameters.values())[1:]
        yield from ((constructor.__module__.startswith("harbor."), one) for one in parameters)
        if not any(one.kind is one.VAR_KEYWORD for one in parameters):
            return


def _takes_more(found: type[BaseAgent]) -> bool:
    """Whether a constructor that is not Harbor's takes what it does not name."""
    return any(one.kind is one.VAR_KEYWORD for is_harbors, one in _parameters(found) if not is_harbors)


def _unnamed(config: Config, found: type[BaseAgent]) -> list[str]:
    """What the class is given and nowhere names. Of the four CLIs' classes, nothing: they are made, and say it."""
    from ptb_runner.harbor_job import agent_fields

    if config.agent.name in clis.CLASSES:
        return []
    known = {*_names(found), *(one.name for _, one in _parameters(found))}
    return [name for name in agent_fields(config)["kwargs"] if name not in known]


def _names(found: type[BaseAgent]) -> list[str]:
    """The options that the class has: those of its model, and of constructors that are not Harbor's."""
    own = {one.name for is_harbors, one in _parameters(found) if not is_harbors and one.kind in _BY_NAME}
    return sorted({*own, *getattr(found.options_model, "model_fields", {})})


def _make(config: Config, found: type[BaseAgent]) -> None:
    """Make the agent as a trial does, with made-up keys; of a class that is not ours, look at its options only."""
    from harbor.agents.factory import AgentFactory
    from harbor.models.trial.config import AgentConfig

    from ptb_runner.harbor_job import agent_fields

    fields = agent_fields(config)
    fields["env"] = dict.fromkeys(fields["env"], "made up")  # the real ones need not be on this machine
    if config.agent.name in clis.CLASSES:
        with tempfile.TemporaryDirectory(prefix="ptb-agent-") as logs:
            AgentFactory.create_agent_from_config(AgentConfig(**fields), logs_dir=Path(logs))
    elif found.options_model:
        own = {one.name for is_harbors, one in _parameters(found) if not is_harbors}
        own |= set(_unnamed(config, found)) if _takes_more(found) else set()  # it may keep them to itself
        found.parse_options({name: value for name, value in fields["kwargs"].items() if name not in own}, fields["env"])


def _told(words: str, config: Config, found: type[BaseAgent]) -> str:
    if unknown := _UNKNOWN.search(words):
        return _no_such(unknown[1], config, found)
    if wrong := _WRONG.search(words):
        return f"{_key(wrong[1], config)}: {wrong[2]}"
    return f"agent={config.agent.id}: {' '.join(words.split())}"


def _no_such(name: str, config: Config, found: type[BaseAgent]) -> str:
    who = config.agent.name or config.agent.import_path
    return f"{_key(name, config)}: {who} has no such option\n  it has: {', '.join(_names(found)) or 'none'}"


def _key(name: str, config: Config) -> str:
    return f"agent.options.{name}" if name in config.agent.options else f"agent.{name}"
