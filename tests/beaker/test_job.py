"""The job's side: entry script and program run for real, in the fake's jobs, with podman nested in them."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from beaker import Beaker, BeakerEnvVar

from ptb_runner import sweep as sweeps
from ptb_runner.launch import beaker_spec, frozen, shipping
from ptb_runner.paths import TEMPLATES
from tests import launch_kit
from tests.fakes.beaker_server.handle import BeakerServer
from tests.podman import podman_kit
from tests.podman.podman_kit import IMAGE
from tests.run_kit import REWARD_IF_OK, TASK_TOML, Cell, agent, make_task

pytestmark = pytest.mark.beaker

BUCKET = "oe-adapt-default"
FAKE_VLLM = Path(__file__).parents[1] / "fakes" / "vllm_server.py"
ON_BEAKER = ("backend=beaker", "launcher=beaker", "serve=none", f"backend.image={IMAGE}", "launcher.sync_sec=0.5")


@pytest.fixture(scope="session")
def image() -> str:
    return podman_kit.make_image()


@pytest.fixture(scope="session")
def code(running_beaker, tmp_path_factory) -> str:
    """The dataset with the program and the tests' agents, as the launcher makes it."""
    folder = tmp_path_factory.mktemp("code")
    config = launch_kit.composed(0, [*ON_BEAKER, "benchmark=hello", *agent("Asks")]).config
    (folder / "shipped").mkdir()
    shipping.wheel(frozen.freeze(folder, [config]), folder / "shipped")
    shutil.copy(TEMPLATES / "beaker" / "entry.sh", folder / "shipped")
    (folder / "shipped" / "requirements.txt").write_text("\n".join(shipping.pins("modal")))
    with Beaker.from_env(check_for_upgrades=False) as client:
        return client.dataset.create(f"code-{uuid.uuid4().hex}", folder / "shipped").id


@dataclass
class Submitted:
    """A cell in a job of the fake."""

    server: BeakerServer
    experiment: str
    place: Path  # its results' folder, here

    @property
    def jobs(self) -> list[dict[str, Any]]:
        return self.server.jobs(self.experiment)

    @property
    def cell(self) -> Cell:
        return Cell(self.place / "cell")

    def over(self) -> dict[str, Any]:
        """The last job, when it is over."""
        self.server.wait_for(lambda _: self.jobs[-1]["finalized"], 120)
        return self.jobs[-1]

    def wait_for(self, found: Callable[[], Any]) -> None:
        def met(_: Any) -> Any:
            assert not self.jobs[-1]["finalized"], self.jobs[-1]["log"]
            return found()

        self.server.wait_for(met, 120)


@pytest.fixture
def submit(beaker_server, beaker_client, tmp_path, image, code) -> Callable[..., Submitted]:
    """Submit a cell as the launcher would: `env` adds variables to the spec, `secrets` values to the workspace."""

    def go(*overrides: str, env: dict[str, str] | None = None, secrets: dict[str, str] | None = None) -> Submitted:
        for name, value in {"HF_TOKEN": "hf-token-of-tests", **(secrets or {})}.items():
            beaker_server.secret(name, value)
        sweep = tmp_path / "sweep"
        sweep.mkdir()
        (cell,) = sweeps.prepare(sweep, [launch_kit.composed(0, [*ON_BEAKER, *overrides])])
        shipping.pack(cell.folder, sweep / "sweep.yaml", tmp_path / "cell.tar")
        packed = beaker_client.dataset.create(f"cell-{uuid.uuid4().hex}", tmp_path / "cell.tar")
        results = f"/weka/{BUCKET}/{uuid.uuid4().hex}/0-1"
        shipped = beaker_spec.Shipped(code, packed.id, results)
        spec = beaker_spec.experiment(cell, shipped)
        variables = spec.tasks[0].env_vars
        assert variables is not None
        variables += [BeakerEnvVar(name=name, value=value) for name, value in (env or {}).items()]
        made = beaker_client.experiment.create(spec=spec, workspace=beaker_client.workspace.get("ai2/demo"))
        place = beaker_server.weka(BUCKET) / Path(results).relative_to(f"/weka/{BUCKET}")
        return Submitted(beaker_server, made.experiment.id, place)

    return go


def said(job: dict[str, Any], *wanted: str) -> None:
    for text in wanted:
        assert text in job["log"], job["log"]


def test_a_cell_runs_in_a_job_and_its_results_are_kept(submit, tmp_path):
    submitted = submit("benchmark=hello", "agent=oracle", "attempts=2")
    job = submitted.over()
    assert (job["status"], job["exit_code"]) == ("succeeded", 0), job["log"]
    assert submitted.cell.outcomes == ["scored", "scored"]
    said(job, "configuration: ", "container: a container of", "2/2 planned trials scored")
    results = Cell(Path(job["results"]) / "cell")
    assert results.result == submitted.cell.result
    assert (results.folder / "metrics.json").exists()


def test_an_agent_asks_the_model_that_the_job_serves(submit, tmp_path):
    task = make_task(tmp_path / "mine", REWARD_IF_OK, TASK_TOML.replace("no-network", "public"))
    served = ("serve=vllm", f"serve.command=[python,{FAKE_VLLM}]", "model=hf", "model.id=org/tiny", "serve.tp=1")
    asks = agent("Asks", questions=2)
    submitted = submit("benchmark=task", f"benchmark.path={task}", *served, *asks, "launcher.gpus=1", "attempts=2")
    job = submitted.over()
    assert job["exit_code"] == 0, job["log"]
    assert submitted.cell.outcomes == ["scored"] * 2
    assert "loading org/tiny" in (submitted.cell.folder / "serve.log").read_text()
