"""Codex."""

from __future__ import annotations

from harbor.agents.installed import codex

from ptb_runner.agent.own_variables import OwnVariables


class Codex(OwnVariables, codex.Codex):
    pass
