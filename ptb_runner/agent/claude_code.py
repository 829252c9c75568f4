"""Claude Code."""

from __future__ import annotations

from harbor.agents.installed import claude_code

from ptb_runner.agent.own_variables import OwnVariables


class ClaudeCode(OwnVariables, claude_code.ClaudeCode):
    AMBIENT = ("CLAUDE_CODE_MAX_OUTPUT_TOKENS", "CLAUDE_CODE_DISABLE_ADAPTIVE_THINKING")
