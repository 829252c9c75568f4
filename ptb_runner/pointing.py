"""Pointing a trial's agent at the server of the model under test, whatever the agent reads to find its LLM."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from ptb_runner import serve
from ptb_runner.agent import clis
from ptb_runner.config import AgentConfig, Auth, Config
from ptb_runner.explain import UsageError
from ptb_runner.server import Server

if TYPE_CHECKING:
    from harbor.models.trial.config import TrialConfig

# The agent finds the server's key in this variable; the value is made for one start of the server.
KEY = "HOSTED_VLLM_API_KEY"


def at_server(trial: TrialConfig, config: Config, server: Server) -> TrialConfig:
    """A trial whose agent asks the server: by Harbor's own fields, or by OpenAI's variables where a class has none."""
    from harbor.agents.factory import AgentFactory
    from harbor.agents.installed.base import BaseInstalledAgent
    from harbor.models.model_api_format import ModelApiFormat

    trial = trial.model_copy(deep=True)
    agent = trial.agent
    agent_class = AgentFactory.get_agent_class_from_config(agent)
    inside = issubclass(agent_class, BaseInstalledAgent) or agent_class.MODEL_CONNECTION is None
    url = server.url_for(serve.address(config)) if inside else server.url
    if agent_class.MODEL_CONNECTION is None:
        agent.env |= {"OPENAI_BASE_URL": url, "OPENAI_API_KEY": server.key}
        return trial
    for name, value in clis.endpoint(_at(config.agent, url)).items():
        setattr(agent, name, value)
    if config.agent.name == "opencode":
        agent.model_api_format = ModelApiFormat.OPENAI_CHAT_COMPLETIONS  # it does not know the provider
    agent.env |= {KEY: server.key}
    if "model_info" in getattr(agent_class.options_model, "model_fields", {}):
        agent.kwargs.setdefault("model_info", _limits(server))
    return trial


def _at(agent: AgentConfig, url: str) -> AgentConfig:
    return dataclasses.replace(agent, base_url=url, env_vars=[KEY], auth=Auth.api_key)


def _limits(server: Server) -> dict[str, Any]:
    """What LiteLLM wants to know of a model that it has not heard of: its limits, and that it costs nothing."""
    if server.max_model_len is None:
        raise UsageError("serve.max_model_len: needs a value: the server does not say, and the agent wants to know")
    return {
        "max_input_tokens": server.max_model_len,
        "max_output_tokens": server.max_model_len,
        "input_cost_per_token": 0.0,
        "output_cost_per_token": 0.0,
    }
