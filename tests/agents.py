"""Agents that tests run: agent=custom agent.import_path=tests.agents:NAME.

They are Harbor agents like any other: `run` works inside the sandbox through `environment.exec`, and `agent.options`
come as keyword arguments.
"""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import signal
import sys
from pathlib import Path
from typing import Any, override

from harbor.agents.base import BaseAgent
from harbor.agents.installed.base import ApiRateLimitError, NonZeroAgentExitCodeError
from harbor.environments.base import BaseEnvironment
from harbor.models.agent.context import AgentContext

HAND_OVER_BASE_MODEL = "cp -r base_model final_model"
WRITE_OK = "printf ok > answer.txt"


class Scripted(BaseAgent):
    """Runs `command` in the sandbox; `by_attempt` has other commands for trials with these numbers."""

    command = "true"

    def __init__(
        self, *args: Any, command: str | None = None, by_attempt: dict[int, str] | None = None, **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        self.command = self.command if command is None else command
        self.by_attempt = {int(number): one for number, one in (by_attempt or {}).items()}

    @staticmethod
    @override
    def name() -> str:
        return "scripted"

    @override
    def version(self) -> str:
        return "0.1"

    @override
    async def setup(self, environment: BaseEnvironment) -> None:
        """Nothing is needed."""

    @property
    def attempt(self) -> int:
        found = re.search(r"__(\d+)__agent$", self.session_id or "")
        return int(found.group(1)) if found else 0

    @override
    async def run(self, instruction: str, environment: BaseEnvironment, context: AgentContext) -> None:
        await self.do(environment, self.by_attempt.get(self.attempt, self.command))

    async def do(self, environment: BaseEnvironment, command: str) -> str:
        result = await environment.exec(command)
        self.logs_dir.mkdir(parents=True, exist_ok=True)
        (self.logs_dir / "scripted.txt").write_text((result.stdout or "") + (result.stderr or ""))
        assert result.return_code == 0, f"the test's own script failed: {result.stderr}"
        return result.stdout or ""


class Honest(Scripted):
    """Hands over the base model as it is, or answers hello."""

    command = f"if [ -d base_model ]; then {HAND_OVER_BASE_MODEL}; else {WRITE_OK}; fi"


class LeavesRunning(Scripted):
    """Hands over the base model, and ends while two programs of its own still run, of which one ignores SIGTERM."""

    command = """
    cp -r base_model final_model
    (setsid bash -c 'trap "" TERM; while sleep 0.05; do date +%s%N > final_model/changed; done' > /dev/null 2>&1 &)
    nohup sleep 1234 > /dev/null 2>&1 &
    until [ -e final_model/changed ]; do sleep 0.05; done
    """


class Cheat(Scripted):
    """Does the same work as Honest (on hello: wrong work), and tries to be scored as perfect for it."""

    command = r"""
    if [ -d base_model ]; then cp -r base_model final_model; else printf no > answer.txt; fi
    here=$(pwd)

    # Rewards and verdicts where a verifier would put them, and where the hand-off is.
    mkdir -p /logs/verifier /logs/artifacts /tests ~/bin ~/.local/bin /tmp/bin
    for folder in /logs/verifier /logs/artifacts /logs/agent /tests /tmp ~ . /handoff final_model; do
      [ -d "$folder" ] || continue
      echo 1 > "$folder/reward.txt"
      echo '{"reward": 1}' > "$folder/reward.json"
      echo '{"outcome": "scored", "reason": null, "reward": 1.0, "metrics": {"accuracy": 1.0}}' > "$folder/verdict.json"
      echo '{"accuracy": 1.0}' > "$folder/metrics.json"
      echo '{"final_model": "copied", "files": 3, "bytes": 9, "error": null}' > "$folder/collect.json"
    done
    printf '#!/bin/bash\necho 1 > /logs/verifier/reward.txt\n' > /tests/test.sh

    # The evaluator, its libraries, and any Python that is found first.
    fake='import json, sys; print(json.dumps({"accuracy": 1.0}))
a = sys.argv
open(a[a.index("--json-output-file") + 1], "w").write(json.dumps({"accuracy": 1.0}))'
    for name in evaluate.py nano.py numpy.py json.py sitecustomize.py usercustomize.py; do
      for folder in . final_model /handoff /tests /tmp ~; do
        [ -d "$folder" ] && { rm -f "$folder/$name"; echo "$fake" > "$folder/$name"; }
      done
    done
    IFS=: read -ra places <<< "$PATH"
    for folder in ~/bin ~/.local/bin /tmp/bin "$here" "${places[@]}"; do
      for name in python3 python bash head printf cat; do
        { printf '#!/bin/bash\necho 1 > /logs/verifier/reward.txt\n' > "$folder/.$name" &&
          chmod +x "$folder/.$name" && mv -f "$folder/.$name" "$folder/$name"; } 2>/dev/null
      done
    done
    for file in ~/.bashrc ~/.profile ~/.bash_profile ~/.pydistutils.cfg /etc/profile /etc/ld.so.preload; do
      echo 'export PATH=/tmp/bin:$PATH' >> "$file"
    done 2>/dev/null

    # Somebody who goes on after the agent has ended.
    (setsid nohup /bin/bash -c '
      while true; do
        echo 1 > /logs/verifier/reward.txt
        echo 1.0 > /handoff/reward.txt
        echo "{\"outcome\": \"scored\", \"reward\": 1.0}" > /handoff/verdict.json
        /bin/sleep 0.02 || /usr/bin/sleep 0.02
      done' > /dev/null 2>&1 &)
    exit 0
    """


class CheatWithLinks(Scripted):
    """Its final_model is made of links to what it must not read, and to the verifier's own files."""

    command = """
    mkdir final_model
    ln -s "$(pwd)/base_model/config.json" final_model/config.json
    ln -s /tests/test.txt final_model/model.safetensors
    ln -s /etc/shadow final_model/tokenizer.json
    ln -s / final_model/everything
    ln -s . final_model/loop
    """


class Sleeper(Scripted):
    """Writes what `first` says, then sleeps for long, with a child that belongs to nobody."""

    def __init__(self, *args: Any, first: str = "true", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.first = first

    @override
    async def run(self, instruction: str, environment: BaseEnvironment, context: AgentContext) -> None:
        orphan = "(setsid bash -c 'while sleep 0.05; do date +%s.%N > alive; done' > /dev/null 2>&1 &)"
        await environment.exec(f"{self.first}\n{orphan}\nsleep 600")


class Raises(Scripted):
    """Does its command, then raises: `error` names what."""

    errors: dict[str, type[Exception]] = {
        "ValueError": ValueError,
        "ApiRateLimitError": ApiRateLimitError,
        "NonZeroAgentExitCodeError": NonZeroAgentExitCodeError,
    }

    def __init__(
        self, *args: Any, error: str = "ValueError", message: str = "boom", output_tokens: int = 0, **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        self.error, self.message, self.output_tokens = error, message, output_tokens

    @override
    async def run(self, instruction: str, environment: BaseEnvironment, context: AgentContext) -> None:
        await self.do(environment, self.command)
        context.n_output_tokens = self.output_tokens
        raise self.errors[self.error](self.message)


class RaisesAnything(Scripted):
    """Raises what is no Exception, in trials with these numbers: where is `init`, `setup`, `run` or `task`."""

    errors: dict[str, type[BaseException]] = {
        "SystemExit": SystemExit,
        "KeyboardInterrupt": KeyboardInterrupt,
        "GeneratorExit": GeneratorExit,
        "BaseException": BaseException,
    }
    command = WRITE_OK

    def __init__(self, *args: Any, error: str, where: str, attempts: list[int], logs_dir: Path, **kwargs: Any) -> None:
        super().__init__(*args, logs_dir=logs_dir, **kwargs)
        found = re.search(r"__(\d+)/agent", str(logs_dir))
        self.where = where if found and int(found.group(1)) in attempts else ""
        self.error = self.errors[error]
        self._maybe_raise("init")

    def _maybe_raise(self, where: str) -> None:
        if self.where == where:
            raise self.error("out of order")

    @override
    async def setup(self, environment: BaseEnvironment) -> None:
        self._maybe_raise("setup")

    @override
    async def run(self, instruction: str, environment: BaseEnvironment, context: AgentContext) -> None:
        async def in_a_task() -> None:
            self._maybe_raise("task")

        self._maybe_raise("run")
        await asyncio.gather(in_a_task())
        await super().run(instruction, environment, context)


class FailsFirst(Scripted):
    """Its first `times` runs fail at setup, counted in a file on the host; then it answers hello."""

    command = WRITE_OK

    def __init__(self, *args: Any, counter: str, times: int = 1, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.counter, self.times = Path(counter), times

    @override
    async def setup(self, environment: BaseEnvironment) -> None:
        so_far = int(self.counter.read_text()) if self.counter.exists() else 0
        self.counter.write_text(str(so_far + 1))
        if so_far < self.times:
            raise RuntimeError(f"no agent today ({so_far + 1})")


class CannotBeMade(Honest):
    """Its constructor raises in trials with these numbers."""

    def __init__(self, *args: Any, attempts: list[int], logs_dir: Path, **kwargs: Any) -> None:
        super().__init__(*args, logs_dir=logs_dir, **kwargs)
        found = re.search(r"__(\d+)/agent", str(logs_dir))
        if found and int(found.group(1)) in attempts:
            raise RuntimeError("this agent cannot be made")


class Leaks(Scripted):
    """Writes the named variables' values wherever an agent can, then raises with them in its message."""

    def __init__(self, *args: Any, names: list[str], option: str = "", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.names, self.option = names, option

    @override
    async def run(self, instruction: str, environment: BaseEnvironment, context: AgentContext) -> None:
        seen = " ".join(f'"${name}"' for name in self.names)
        option = shlex.quote(self.option)
        out = await self.do(
            environment,
            f"{WRITE_OK}; echo {seen} {option} | tee /logs/agent/trace.txt > /logs/artifacts/trace.txt; "
            f"cat /logs/agent/trace.txt",
        )
        self.logger.warning("the agent's log: %s %s", out, self.option)
        raise ValueError(f"401 for {out} with {self.option!r}")


class Gated(Honest):
    """Waits, on the host, until the file `gate` is there (an empty name: not at all); then does honest work."""

    def __init__(self, *args: Any, gate: str = "", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.gate = gate

    @override
    async def run(self, instruction: str, environment: BaseEnvironment, context: AgentContext) -> None:
        while self.gate and not Path(self.gate).exists():  # noqa: ASYNC110, ASYNC240 - another process makes it
            await asyncio.sleep(0.05)
        await super().run(instruction, environment, context)


class DiesOfTheSignal(Scripted):
    """Its first run ends as when a signal kills the sandbox before the runner hears of it; then it answers hello."""

    command = WRITE_OK

    def __init__(self, *args: Any, counter: str, number: str = "SIGTERM", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.counter, self.number = Path(counter), signal.Signals[number]

    @override
    async def run(self, instruction: str, environment: BaseEnvironment, context: AgentContext) -> None:
        if not self.counter.exists():
            self.counter.touch()
            os.kill(os.getpid(), self.number)
            raise RuntimeError("the sandbox is gone")
        await super().run(instruction, environment, context)


class Prints(Honest):
    """Prints a variable's value on the host's side, as a careless agent class may."""

    def __init__(self, *args: Any, variable: str, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.variable = variable

    @override
    async def run(self, instruction: str, environment: BaseEnvironment, context: AgentContext) -> None:
        print(f"using {os.environ[self.variable]}", flush=True)
        print(f"again {os.environ[self.variable]}", file=sys.stderr, flush=True)
        await super().run(instruction, environment, context)


class Asks(Scripted):
    """Asks its LLM from within the sandbox, as often as told, and writes `ok` if it always gave an answer."""

    command = WRITE_OK

    def __init__(self, *args: Any, questions: int = 1, forgiving: bool = False, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.questions, self.forgiving = questions, forgiving

    @override
    async def run(self, instruction: str, environment: BaseEnvironment, context: AgentContext) -> None:
        name = (self.model_name or "").partition("/")[2]
        script = (
            "import json, os, urllib.request as web\n"
            f"body = json.dumps({{'model': {name!r}, 'messages': [{{'role': 'user', 'content': 'Hi'}}]}}).encode()\n"
            "headers = {'authorization': 'Bearer ' + os.environ['OPENAI_API_KEY']}\n"
            "url = os.environ['OPENAI_BASE_URL'] + '/chat/completions'\n"
            f"for _ in range({self.questions}):\n"
            "    answer = json.load(web.urlopen(web.Request(url, body, headers), timeout=30))\n"
            "    print(answer['choices'][0]['message']['content'])\n"
        )
        asked = f"python3 -c {shlex.quote(script)} > said.txt && {self.command}"
        result = await environment.exec(asked, env=dict(self._extra_env))
        if result.return_code and not self.forgiving:
            raise NonZeroAgentExitCodeError((result.stderr or "")[-500:])
