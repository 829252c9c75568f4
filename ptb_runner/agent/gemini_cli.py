"""Gemini CLI."""

from __future__ import annotations

from typing import override

from harbor.agents.installed import gemini_cli
from harbor.environments.base import BaseEnvironment

from ptb_runner.agent.first_answer import FirstAnswer
from ptb_runner.agent.own_variables import OwnVariables
from ptb_runner.agent.reprompt import Reprompt


class GeminiCli(Reprompt, FirstAnswer, OwnVariables, gemini_cli.GeminiCli):
    """Logs every event as a line of JSON while it works, where Harbor's class keeps only the last answer.

    It is taken from the image when it is there at the wanted version: Harbor's class installs it anew each time.
    """

    @override
    def build_cli_flags(self) -> str:
        return f"{super().build_cli_flags()} --output-format=stream-json".strip()

    @override
    async def install(self, environment: BaseEnvironment) -> None:
        if not await self.is_requested_version_installed(environment):
            await super().install(environment)
