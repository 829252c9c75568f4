"""OpenCode."""

from __future__ import annotations

from typing import Any, override

from harbor.agents.installed import opencode

from ptb_runner.agent import reprompt
from ptb_runner.agent.first_answer import FirstAnswer
from ptb_runner.agent.own_variables import OwnVariables


class OpenCode(reprompt.Reprompt, FirstAnswer, OwnVariables, opencode.OpenCode):
    @override
    def _parse_stdout(self) -> list[dict[str, Any]]:
        """Of all rounds: each prints only its own events, tokens and dollars."""
        mine, found = self.logs_dir, []
        try:
            for path in reprompt.logs(mine, self._OUTPUT_FILENAME):
                self.logs_dir = path.parent
                found += super()._parse_stdout()
        finally:
            self.logs_dir = mine
        return found
