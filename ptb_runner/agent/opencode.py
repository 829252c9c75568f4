"""OpenCode."""

from __future__ import annotations

from harbor.agents.installed import opencode

from ptb_runner.agent.own_variables import OwnVariables


class OpenCode(OwnVariables, opencode.OpenCode):
    pass
