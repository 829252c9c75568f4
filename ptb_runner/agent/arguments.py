"""What one of Harbor's agent classes says of its options, before a trial fails by it."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from ptb_runner.agent import clis
from ptb_runner.config import Config

if TYPE_CHECKING:
    from harbor.agents.base import BaseAgent

# Harbor's words, after which it names its own command line.
_UNKNOWN = re.compile(r"^  Unknown option '([^']+)'", re.MULTILINE)
_WRONG = re.compile(r"^  ([\w.]+): (.+)$", re.MULTILINE)


def problems(config: Config, found: type[BaseAgent]) -> list[str]:
    """Why every trial's agent of this class would be refused; [] when it would not be."""
    try:
        _make(config, found)
    except (ValueError, TypeError) as error:
        return [_told(str(error), config, found)]
    return []


def _make(config: Config, found: type[BaseAgent]) -> None:
    """Make the agent as a trial does, with made-up keys."""
    from harbor.agents.factory import AgentFactory
    from harbor.models.trial.config import AgentConfig

    from ptb_runner.harbor_job import agent_fields

    fields = agent_fields(config)
    fields["env"] = dict.fromkeys(fields["env"], "made up")  # the real ones need not be on this machine
    if config.agent.name not in clis.CLASSES:  # the others' constructors may do more than look
        if getattr(found, "options_model", None):  # a class without takes all, and Harbor would say so at length
            found.parse_options(fields["kwargs"], fields["env"])
        return
    with tempfile.TemporaryDirectory(prefix="ptb-agent-") as logs:
        AgentFactory.create_agent_from_config(AgentConfig(**fields), logs_dir=Path(logs))


def _told(words: str, config: Config, found: type[BaseAgent]) -> str:
    agent = config.agent
    if unknown := _UNKNOWN.search(words):
        known = ", ".join(sorted(getattr(found.options_model, "model_fields", {})))
        return f"agent.options.{unknown[1]}: {agent.name} has no such option\n  it has: {known}"
    if wrong := _WRONG.search(words):
        return f"agent.options.{wrong[1]}: {wrong[2]}"
    return f"agent={agent.id}: {' '.join(words.split())}"
