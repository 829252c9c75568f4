"""Who does it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

from omegaconf import MISSING

from ptb_runner.config.declare import option


class Auth(Enum):
    """How an agent pays for its LLM."""

    api_key = "api_key"
    subscription = "subscription"


@dataclass
class RepromptConfig:
    """Whether an agent that says it is done is prompted again, within the same budget."""

    min_remaining_min: float | None = option(
        None,
        "Minutes that must be left of its hours for an agent that is done to be prompted again; null: never.",
        above=0,
    )
    max: int = option(10, "Times that it is prompted again at most.", least=1)
    pause_sec: float = option(30.0, "Wait before each further prompt (seconds).", least=0)


@dataclass
class AgentConfig:
    """The agent under test."""

    id: str = option(MISSING, "Name in results and folders.")
    name: str | None = option(None, "Harbor's name of a built-in agent.")
    import_path: str | None = option(None, "An agent class of one's own, as module:Class.")
    model: str | None = option(None, "The agent's own LLM, as provider/name.")
    base_url: str | None = option(
        None, "Where the agent reaches its LLM: an http(s) URL; null: the provider's own.", result=False
    )
    version: str | None = option(None, "Version of the agent's CLI; latest or null: the newest.")
    timeout_hours: float | None = option(None, "Hours this agent has, instead of budget.hours.", above=0)
    first_answer_min: float | None = option(
        30.0,
        "Minutes after which a CLI whose LLM has not answered at all is ended; null: never.",
        result=False,
        above=0,
    )
    reprompt: RepromptConfig = option(RepromptConfig, "Whether it is prompted again.")
    options: dict[str, Any] = option({}, "Keyword arguments of Harbor's agent class.")
    env: dict[str, str] = option({}, "Settings for the agent's environment; secrets only as ${oc.env:NAME}.")
    env_vars: list[str] = option([], "Names of host variables that the agent needs, such as its API key.")
    auth: Auth = option(
        Auth.api_key, "What the agent's LLM is paid with: api_key, or subscription (claude-code, codex).", result=False
    )
