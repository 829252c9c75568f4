"""Claude Code."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any, override

from harbor.agents.installed import claude_code

from ptb_runner.agent import reprompt
from ptb_runner.agent.first_answer import FirstAnswer
from ptb_runner.agent.own_variables import OwnVariables


class ClaudeCode(reprompt.Reprompt, FirstAnswer, OwnVariables, claude_code.ClaudeCode):
    AMBIENT = ("CLAUDE_CODE_MAX_OUTPUT_TOKENS", "CLAUDE_CODE_DISABLE_ADAPTIVE_THINKING")

    @override
    def _resolve_auth_env(self) -> dict[str, str]:
        env = super()._resolve_auth_env()
        keys = ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "CLAUDE_CODE_OAUTH_TOKEN")
        if self._base_url and not any(env.get(name) for name in keys):
            env["ANTHROPIC_AUTH_TOKEN"] = "none"  # without any it does not start, whatever the endpoint
        return env

    @override
    def _parse_total_cost_from_stream_json(self, logs_dir: Path | None = None) -> float | None:
        """Of all rounds. Newer versions count on when a session is resumed, older ones begin anew."""
        total, before = None, 0
        for result in filter(None, map(_result, reprompt.logs(logs_dir or self.logs_dir, "claude-code.txt"))):
            cost, session = result.get("total_cost_usd"), sum(map(_tokens, result.get("modelUsage", {}).values()))
            counts_on = before > 0 and session >= before + _tokens(result.get("usage", {}))
            if cost is not None:
                total = float(cost) if counts_on else (total or 0.0) + float(cost)
            before = session
        return total


def _result(log: Path) -> dict[str, Any] | None:
    """What Claude Code says at its end."""
    found = None
    for line in log.read_text(errors="replace").splitlines() if log.is_file() else ():
        with contextlib.suppress(ValueError):
            event = json.loads(line) if line.startswith("{") else None
            found = event if isinstance(event, dict) and event.get("type") == "result" else found
    return found


def _tokens(usage: dict[str, Any]) -> int:
    """Tokens in and out, by the names that either table uses."""
    return sum(usage.get(name) or 0 for name in ("inputTokens", "outputTokens", "input_tokens", "output_tokens"))
