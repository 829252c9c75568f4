"""An agent that is ended when its LLM does not answer at all.

Some CLIs wait for a network, or for a server under load, for as long as they are let: with a wrong address, or a quota
that is used up, ten hours of a GPU would go by before anybody was told.
"""

from __future__ import annotations

import asyncio
import contextlib
import shlex
from collections.abc import Mapping
from typing import Any, override

from harbor.agents.installed.base import BaseInstalledAgent
from harbor.environments.base import BaseEnvironment
from harbor.models.agent.context import AgentContext

from ptb_runner import clierrors, clilogs
from ptb_runner.times import duration

_HEAD_BYTES, _EXEC_SEC = 1_000_000, 60


class LlmSilentError(RuntimeError):
    """Its name is what becomes of the trial: clierrors.SILENT."""


class FirstAnswer(BaseInstalledAgent):
    """Comes before a class of Harbor's whose log `clilogs` can read; does nothing without `first_answer_min`."""

    def __init__(self, *args: Any, first_answer_min: float | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._first_answer_min = first_answer_min

    @classmethod
    @override
    def parse_options(cls, kwargs: dict[str, Any] | None = None, env: Mapping[str, str] | None = None) -> Any:
        return super().parse_options({k: v for k, v in (kwargs or {}).items() if k != "first_answer_min"}, env)

    @override
    async def run(self, instruction: str, environment: BaseEnvironment, context: AgentContext) -> None:
        limit = self._first_answer_min
        work = asyncio.create_task(super().run(instruction, environment, context))
        try:
            done, _ = await asyncio.wait([work], timeout=None if limit is None else limit * 60)
            if limit is not None and not done and (silence := await self._silence(environment)):
                raise LlmSilentError(f"{silence} (ended after {duration(limit / 60)})")
            await work
        finally:
            if not work.done():
                work.cancel()
                await asyncio.wait([work])

    async def _silence(self, environment: BaseEnvironment) -> str | None:
        """That the LLM has not answered, as the CLI's log in the sandbox has it; None when it has, or who knows."""
        name = f"{self.name()}.txt"
        with contextlib.suppress(Exception):  # the sandbox may be busy, or gone: Harbor will say so
            log = shlex.quote(str(self.environment_logs_dir / name))
            done = await environment.exec(f"head -c {_HEAD_BYTES} -- {log}", timeout_sec=_EXEC_SEC)
            lines = (done.stdout or "").splitlines()
            if done.return_code == 0 and not clilogs.answered(name, lines):
                return clierrors.silent(name, lines)
        return None
