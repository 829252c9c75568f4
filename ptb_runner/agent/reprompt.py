"""An agent that is prompted again while much of its time is left.

Many an agent says that it is done after a fraction of its budget. Its session is then resumed by the CLI's own means
and told what time is left. All rounds together have the one budget: Harbor's limit counts from the first prompt to the
last answer, and so does the timer in the sandbox.
"""

from __future__ import annotations

import asyncio
import shlex
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, override

from harbor.agents.installed.base import BaseInstalledAgent
from harbor.environments.base import BaseEnvironment
from harbor.models.agent.context import AgentContext

from ptb_runner.cell import write_json
from ptb_runner.outcome import ROUNDS_FILE
from ptb_runner.times import duration
from ptb_runner.trace import ROUNDS

PROMPT = """\
You have ended your turn, but {left} of your {budget} are left, and nobody looks at your work before they are over. \
Go on: check what you have, and use the time to make it better. Nobody will answer questions. Leave your best result \
where it was asked for."""


@dataclass(frozen=True)
class Limits:
    """When to prompt again: with so much left at least, at most `max` times, after a pause. The budget is Harbor's."""

    budget_sec: float
    min_remaining_min: float
    max: int
    pause_sec: float


@dataclass
class Round:
    """What became of one prompt."""

    seconds: float
    error: str | None = None


class Reprompt(BaseInstalledAgent):
    """Comes before one of Harbor's classes whose sessions can be resumed; does nothing without `reprompt`."""

    def __init__(self, *args: Any, reprompt: dict[str, Any] | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._limits = Limits(**reprompt) if reprompt else None

    @classmethod
    @override
    def parse_options(cls, kwargs: dict[str, Any] | None = None, env: Mapping[str, str] | None = None) -> Any:
        return super().parse_options({k: v for k, v in (kwargs or {}).items() if k != "reprompt"}, env)

    @override
    async def run(self, instruction: str, environment: BaseEnvironment, context: AgentContext) -> None:
        limits = self._limits
        if limits is None:
            return await super().run(instruction, environment, context)
        end = time.monotonic() + limits.budget_sec
        rounds: list[Round] = []
        await self._round(rounds, super().run, instruction, environment, context)
        while len(rounds) <= limits.max and end - time.monotonic() - limits.pause_sec >= limits.min_remaining_min * 60:
            await asyncio.sleep(limits.pause_sec)
            await self._keep_log(environment, len(rounds))
            left = duration((end - time.monotonic()) / 3600)
            prompt = PROMPT.format(left=left, budget=duration(limits.budget_sec / 3600))
            self._resume = True
            try:
                await self._round(rounds, super().run, prompt, environment, context)
            except Exception as error:  # what the earlier rounds have achieved is not lost by it
                self.logger.warning("the agent could not be prompted again: %s", error)
                break
            finally:
                self._resume = False
        return None

    async def _round(self, rounds: list[Round], run: Any, prompt: str, *more: Any) -> None:
        """Prompt the agent once, and note how that went."""
        begin, this = time.monotonic(), Round(0.0)
        rounds.append(this)
        try:
            await run(prompt, *more)
        except Exception as error:
            this.error = type(error).__name__
            raise
        finally:
            this.seconds = round(time.monotonic() - begin, 3)
            write_json(self.logs_dir.parent / ROUNDS_FILE, [asdict(one) for one in rounds])

    async def _keep_log(self, environment: BaseEnvironment, number: int) -> None:
        """Put a round's log where the next round's does not overwrite it."""
        folder = shlex.quote(str(self.environment_logs_dir))
        await environment.exec(
            f'cd {folder} && mkdir -p {ROUNDS}/{number} && for log in *.txt; do [ ! -f "$log" ] || '
            f'cp -p -- "$log" {ROUNDS}/{number}/; done'
        )


def logs(folder: Path, name: str) -> Iterator[Path]:
    """The log `name` of each round, in order, in an agent's folder on the host."""
    earlier = [path for path in folder.glob(f"{ROUNDS}/*/{name}") if path.parent.name.isdigit()]
    yield from sorted(earlier, key=lambda path: int(path.parent.name))
    yield folder / name
