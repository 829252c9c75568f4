"""The keys of a cell, by name: who gets which, and where they come from. A value is never stored, logged or printed.

Keys come from the environment, or from a file `.env` in the folder one stands in (PTB_ENV_FILE names another), which
never overrides the environment. With `agent.auth=subscription` an agent uses a login instead of its API key: Claude
Code the variable CLAUDE_CODE_OAUTH_TOKEN, Codex the file that `codex login` wrote.
"""

from __future__ import annotations

import os
from pathlib import Path

from ptb_runner.agent import login
from ptb_runner.config import AgentConfig, Auth, Config, ExternalServeConfig, task_env_vars
from ptb_runner.explain import UsageError

# By Harbor's name of the agent: the API keys that a subscription replaces, and the variables that it needs instead.
SUBSCRIPTIONS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "claude-code": (("ANTHROPIC_API_KEY",), ("CLAUDE_CODE_OAUTH_TOKEN",)),
    "codex": (("OPENAI_API_KEY", "CODEX_API_KEY"), ()),
}
_LOGIN_COMMANDS = {"CLAUDE_CODE_OAUTH_TOKEN": "claude setup-token"}


def load_env_file() -> None:
    """Take variables that are not set from a `.env` file, if there is one."""
    named = os.environ.get("PTB_ENV_FILE")
    path = Path(named or ".env")
    if named and not path.is_file():
        raise UsageError(f"PTB_ENV_FILE={named}: no such file\n  name a file with lines NAME=value, or unset it")
    if not path.is_file():
        return
    from dotenv import dotenv_values

    try:
        values = dotenv_values(path, interpolate=False)
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: cannot be read: {error}") from None
    for name, value in values.items():
        if value:
            os.environ.setdefault(name, value)


def of_agent(agent: AgentConfig) -> list[str]:
    """Names of the variables that go to the agent's sandbox for the agent itself."""
    if agent.auth is Auth.api_key:
        return list(agent.env_vars)
    replaced, needed = SUBSCRIPTIONS.get(agent.name or "", ((), ()))
    return list(dict.fromkeys([*(name for name in agent.env_vars if name not in replaced), *needed]))


def of_cell(config: Config) -> list[str]:
    """Names of all variables that the cell needs of the host: its sandboxes', and the judges'."""
    names = [*of_agent(config.agent), *task_env_vars(config), *config.benchmark.verifier_env_vars]
    names += [config.judge.api_key_var] if config.judge.panel and config.judge.api_key_var else []
    if isinstance(config.serve, ExternalServeConfig) and config.serve.api_key_var:
        names.append(config.serve.api_key_var)
    return list(dict.fromkeys(names))


def login_file(agent: AgentConfig) -> Path | None:
    """The file with the subscription's login that the agent gets; None when it needs none."""
    return login.path() if agent.auth is Auth.subscription and agent.name == "codex" else None


def found(config: Config) -> dict[str, bool]:
    """The names of the keys and logins that the cell needs, and whether each is there."""
    keys = {name: bool(os.environ.get(name)) for name in of_cell(config)}
    file = login_file(config.agent)
    return keys | ({str(file): not login.problem(file)} if file else {})


def missing(config: Config) -> list[str]:
    """What is not there, with what to do about it."""
    told = []
    for name in of_cell(config):
        if not os.environ.get(name):
            how = f"type {_LOGIN_COMMANDS[name]}, then " if name in _LOGIN_COMMANDS else ""
            told.append(
                f"{name}: this variable is needed and is not set\n"
                f"  {how}export {name}=... or write it into .env, and start again"
            )
    file = login_file(config.agent)
    if file and (problem := login.problem(file)):
        told.append(f"agent.auth=subscription: {problem}\n  type codex login, or name its file in CODEX_AUTH_JSON_PATH")
    return told


def secrets(config: Config) -> dict[str, str]:
    """The values that must never be written, by name: of variables, and in a login's file."""
    values = {name: os.environ[name] for name in of_cell(config) if name in os.environ}
    file = login_file(config.agent)
    return values | (login.secrets(file) if file else {})
