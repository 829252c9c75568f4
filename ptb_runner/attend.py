"""What is done for an agent while it works in its sandbox, and just after.

Harbor brings an agent's logs out when the agent has ended; here they are brought out every few seconds, so that
`ptb trace -f` and `ptb logs -f` can show them. And what an agent has left running is ended before its work is
collected: it would go on changing what is scored.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import logging
import re
import shlex
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ptb_runner.cell import write_json
from ptb_runner.config import Config, Kind
from ptb_runner.outcome import LEFT_PROCESSES
from ptb_runner.paths import TEMPLATES
from ptb_runner.redact import Redactor

if TYPE_CHECKING:
    from harbor.environments.base import BaseEnvironment
    from harbor.trial.trial import Trial

log = logging.getLogger(__name__)

_CHUNK = 1 << 20  # bytes of a log that are brought out at a time
_EXEC_SEC = 60
_NAME = re.compile(r"(?:rounds/\d+/)?[A-Za-z0-9_][\w.-]*\.txt")


def attend(trial: Trial, config: Config, secrets: Redactor) -> None:
    """Have a trial's agent attended."""
    from harbor.trial.hooks import TrialEvent

    looking: list[asyncio.Task[None]] = []

    async def begin(_: Any) -> None:
        if config.benchmark.kind is Kind.post_train:
            await _start_clock(trial)
        every = config.progress.agent_log_sec
        if every and not trial.agent_environment.is_path_mounted(
            trial.agent_env_paths.agent_dir, trial.paths.agent_dir
        ):
            logs = _Logs(trial.agent_environment, str(trial.agent_env_paths.agent_dir), trial.paths.agent_dir, secrets)
            looking.append(asyncio.create_task(_look(logs, every)))

    async def end(_: Any) -> None:
        for task in looking:
            task.cancel()
            await asyncio.wait([task])
        this = asyncio.current_task()
        if config.benchmark.kind is Kind.post_train and not (this and this.cancelling()):
            await _end_left_processes(trial)

    trial.add_hook(TrialEvent.AGENT_START, begin)
    trial.add_hook(TrialEvent.AGENT_END, end)


async def _start_clock(trial: Trial) -> None:
    """Let the agent's timer begin now, as Harbor's limit does: setting the agent up may have taken minutes."""
    with contextlib.suppress(Exception):  # it has begun before, when the sandbox was ready
        await trial.agent_environment.exec(
            "! test -e /timer_start || date +%s > /timer_start", cwd="/", timeout_sec=_EXEC_SEC
        )


# --- Logs -------------------------------------------------------------------------------------------


async def _look(logs: _Logs, every: float) -> None:
    while True:
        await asyncio.sleep(every)
        try:
            await logs.bring()
        except Exception as error:  # the sandbox may be busy, or gone: Harbor will say so
            log.debug("an agent's logs: %s", error)


@dataclass
class _Logs:
    """The logs in a sandbox's folder, and how much of each is already on this side."""

    environment: BaseEnvironment
    inside: str
    outside: Path
    secrets: Redactor
    brought: dict[str, int] = field(default_factory=dict)

    async def bring(self) -> None:
        """Bring out what was added."""
        listing = await self._run('for f in *.txt rounds/*/*.txt; do [ -f "$f" ] && wc -c -- "$f"; done; true')
        for size, _, name in (line.strip().partition(" ") for line in listing.splitlines()):
            if size.isdigit() and _NAME.fullmatch(name):
                await self._bring(name, int(size))

    async def _bring(self, name: str, size: int) -> None:
        path = self.outside / name
        if size < self.brought.get(name, 0):  # begun anew
            self.brought[name] = 0
            path.write_bytes(b"")
        while (start := self.brought.get(name, 0)) < size:
            wanted = min(size - start, _CHUNK)
            encoded = await self._run(f"tail -c +{start + 1} -- {shlex.quote(name)} | head -c {wanted} | base64")
            data = base64.b64decode(encoded)
            # Whole lines, or a secret could be cut in two, which nobody would find.
            whole = data if len(data) == _CHUNK and b"\n" not in data else data[: data.rfind(b"\n") + 1]
            if not whole:
                return
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("ab") as file:
                file.write(self.secrets.text(whole.decode(errors="surrogateescape")).encode(errors="surrogateescape"))
            self.brought[name] = start + len(whole)

    async def _run(self, command: str) -> str:
        done = await self.environment.exec(f"cd {shlex.quote(self.inside)} && {{ {command}; }}", timeout_sec=_EXEC_SEC)
        return done.stdout or ""


# --- Processes --------------------------------------------------------------------------------------


async def _end_left_processes(trial: Trial) -> None:
    """End what the agent has left running, and note what it was."""
    script = (TEMPLATES / "sandbox" / "end_processes.sh").read_text()
    with contextlib.suppress(Exception):  # a sandbox that is gone has no processes
        done = await trial.agent_environment.exec(script, cwd="/", timeout_sec=_EXEC_SEC)
        found = (done.stdout or "").splitlines()
        if found:
            log.info("%s: its agent left %d processes: %s", trial.config.trial_name, len(found), "; ".join(found))
            write_json(trial.paths.trial_dir / LEFT_PROCESSES, found)
