"""Codex."""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path
from typing import Any, override

from filelock import Timeout
from harbor.agents.installed import codex
from harbor.environments.base import BaseEnvironment

from ptb_runner.agent import login
from ptb_runner.agent.first_answer import FirstAnswer
from ptb_runner.agent.own_variables import OwnVariables
from ptb_runner.agent.reprompt import Reprompt


class Codex(Reprompt, FirstAnswer, OwnVariables, codex.Codex):
    """With `login_file`, the file of a subscription, whose renewed tokens come back to it."""

    def __init__(self, *args: Any, login_file: str | None = None, **options: Any) -> None:
        self._login_file = Path(login_file) if login_file else None
        super().__init__(*args, **options)

    @override
    def _resolve_auth_json_path(self) -> Path | None:
        return self._login_file

    @override
    async def exec_as_root(
        self,
        environment: BaseEnvironment,
        command: str,
        env: dict[str, str] | None = None,
        cwd: str | None = None,
        timeout_sec: int | None = None,
    ) -> Any:
        if command.startswith("rm -rf") and self._REMOTE_CODEX_HOME.as_posix() in command:
            await self._bring_login_back(environment)  # Harbor's class is about to remove it, whatever happened
        return await super().exec_as_root(environment, command, env, cwd, timeout_sec)

    async def _bring_login_back(self, environment: BaseEnvironment) -> None:
        if self._login_file is None:
            return
        home, copy = self._REMOTE_CODEX_HOME.as_posix(), "/installed-agent/login.json"
        # Codex may have followed the link to it, or put a file in its place.
        small = f'[ "$(stat -Lc %s {home}/auth.json)" -le {login.MAX_BYTES} ]'
        take = f"rm -rf {copy} && {small} && cp -L {home}/auth.json {copy}"
        try:
            with tempfile.TemporaryDirectory(prefix="ptb-login-") as folder:
                if (await environment.exec(take, user="root", timeout_sec=30)).return_code == 0:
                    await environment.download_file(copy, Path(folder, "auth.json"))
                    done = login.bring_back(self._login_file, Path(folder, "auth.json"))
                    self.logger.info("codex login: %s", done)
        except (RuntimeError, OSError, ValueError, Timeout) as error:
            self.logger.warning("codex login: not brought back: %s", error)
        finally:
            with contextlib.suppress(RuntimeError, OSError):
                await environment.exec(f"rm -rf {copy}", user="root", timeout_sec=30)
