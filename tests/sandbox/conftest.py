"""Real sandboxes for the tests: `make` builds Harbor environments the way a trial does, `run` runs a test in one."""

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

os.environ["HARBOR_TELEMETRY"] = "0"
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"

from harbor.models.task.config import EnvironmentConfig
from harbor.models.trial.paths import TrialPaths

from ptb_runner.sandbox.bubblewrap import BubblewrapEnvironment

Make = Callable[..., BubblewrapEnvironment]
Run = Callable[..., None]


@pytest.fixture
def scratch_dir(tmp_path: Path) -> Path:
    folder = tmp_path / "scratch"
    folder.mkdir()
    return folder


@pytest.fixture
def make(tmp_path: Path, scratch_dir: Path) -> Make:
    """make(config={...}, session_id=..., **Harbor's own arguments and the backend's options)"""

    def build(config: dict[str, Any] | None = None, **more: Any) -> BubblewrapEnvironment:
        environment_dir = tmp_path / "task" / "environment"
        environment_dir.mkdir(parents=True, exist_ok=True)
        paths = TrialPaths(tmp_path / "trial")
        paths.mkdir()
        arguments: dict[str, Any] = {
            "environment_dir": environment_dir,
            "environment_name": "task",
            "session_id": "task__abc__env",
            "trial_paths": paths,
            "task_env_config": EnvironmentConfig.model_validate(config or {}),
            "scratch_dir": scratch_dir,
        }
        return BubblewrapEnvironment(**(arguments | more))

    return build


@pytest.fixture
def run(make: Make, scratch_dir: Path) -> Run:
    """run(body, **make's arguments): `await body(environment)` in a started sandbox, of which nothing then is left."""

    def go(body: Callable[[BubblewrapEnvironment], Awaitable[None]], **arguments: Any) -> None:
        async def main() -> None:
            environment = make(**arguments)
            await environment.start(force_build=False)
            try:
                await body(environment)
            finally:
                await environment.stop(delete=True)

        asyncio.run(main())
        assert list(scratch_dir.glob("ptb-sandboxes-*/*")) == []

    return go
