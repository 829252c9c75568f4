"""The job's side: entry script and program run for real, in the fake's jobs, with podman nested in them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
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
from tests.fakes.separate import ROOT
from tests.podman import podman_kit
from tests.podman.podman_kit import ASK, COMPOSE, IMAGE, TWO_CONTAINERS
from tests.run_kit import REWARD_IF_OK, TASK_TOML, Cell, agent, make_task

pytestmark = pytest.mark.beaker

BUCKET = "oe-adapt-default"
FAKE_VLLM = Path(__file__).parents[1] / "fakes" / "vllm_server.py"
ON_BEAKER = ("launcher=beaker", "serve=none", "launcher.sync_sec=0.5")
PODMAN = ("backend=beaker", f"backend.image={IMAGE}")


@pytest.fixture(scope="session")
def image() -> str:
    return podman_kit.make_image()


@pytest.fixture(scope="session")
def code(running_beaker, tmp_path_factory) -> str:
    """The dataset with the program and the tests' agents, as the launcher makes it."""
    folder = tmp_path_factory.mktemp("code")
    config = launch_kit.composed(0, [*PODMAN, *ON_BEAKER, "benchmark=hello", *agent("Asks")]).config
    (folder / "shipped").mkdir()
    shipping.wheel(frozen.freeze(folder, [config]), folder / "shipped")
    shutil.copy(TEMPLATES / "beaker" / "entry.sh", folder / "shipped")
    (folder / "shipped" / "requirements.txt").write_text("\n".join(shipping.pins("podman")))
    with Beaker.from_env(check_for_upgrades=False) as client:
        return client.dataset.create(f"code-{uuid.uuid4().hex}", folder / "shipped").id


@dataclass
class Submitted:
    """A cell in a job of the fake."""

    server: BeakerServer
    experiment: str
    place: Path  # its results' folder, here
    again: Callable[[], Submitted]

    @property
    def jobs(self) -> list[dict[str, Any]]:
        return self.server.jobs(self.experiment)

    @property
    def cell(self) -> Cell:
        return Cell(self.place / "cell")

    def over(self) -> dict[str, Any]:
        """The last job, when it is over."""
        self.server.wait_for(lambda _: self.jobs[-1]["finalized"], 300)
        return self.jobs[-1]

    def wait_for(self, found: Callable[[], Any]) -> None:
        def met(_: Any) -> Any:
            assert not self.jobs[-1]["finalized"], self.jobs[-1]["log"]
            return found()

        self.server.wait_for(met, 120)


@pytest.fixture
def submit(beaker_server, beaker_client, tmp_path, image, code) -> Callable[..., Submitted]:
    """Submit a cell as the launcher would: `env` adds variables to the spec, `secrets` values to the workspace."""

    def go(
        *overrides: str,
        sandboxes: tuple[str, ...] = PODMAN,
        env: dict[str, str] | None = None,
        secrets: dict[str, str] | None = None,
    ) -> Submitted:
        for name, value in {"HF_TOKEN": "hf-token-of-tests", **(secrets or {})}.items():
            beaker_server.secret(name, value)
        sweep = tmp_path / "sweep"
        sweep.mkdir()
        (cell,) = sweeps.prepare(sweep, [launch_kit.composed(0, [*sandboxes, *ON_BEAKER, *overrides])])
        shipping.pack(cell.folder, sweep / "sweep.yaml", tmp_path / "cell.tar")
        packed = beaker_client.dataset.create(f"cell-{uuid.uuid4().hex}", tmp_path / "cell.tar")
        results = f"/weka/{BUCKET}/{uuid.uuid4().hex}/0-1"
        shipped = beaker_spec.Shipped(code, packed.id, results)
        spec = beaker_spec.experiment(cell, shipped)
        variables = spec.tasks[0].env_vars
        assert variables is not None
        variables += [BeakerEnvVar(name=name, value=value) for name, value in (env or {}).items()]
        place = beaker_server.weka(BUCKET) / Path(results).relative_to(f"/weka/{BUCKET}")

        def begin() -> Submitted:
            made = beaker_client.experiment.create(spec=spec, workspace=beaker_client.workspace.get("ai2/demo"))
            return Submitted(beaker_server, made.experiment.id, place, begin)

        return begin()

    return go


def said(job: dict[str, Any], *wanted: str) -> None:
    for text in wanted:
        assert text in job["log"], job["log"]


def files_with(text: str, *folders: Path) -> list[Path]:
    files = (path for folder in folders for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    return [path for path in files if text.encode() in path.read_bytes()]


def test_a_cell_runs_in_a_job_and_its_results_are_kept(submit):
    """Its secrets are in no file of the results, nor in the log, though the agent prints one."""
    tells = agent("Scripted", command="printf ok > answer.txt; echo told: $TEST_WORD")
    key = ("agent.env_vars=[TEST_WORD]", "++launcher.beaker_secrets.TEST_WORD=WORD_OF_TESTS")
    secret = "canary-7Qx4vZr1Lw9sKd3f"
    submitted = submit("benchmark=hello", *tells, *key, "attempts=2", secrets={"WORD_OF_TESTS": secret})
    job = submitted.over()
    assert (job["status"], job["exit_code"]) == ("succeeded", 0), job["log"]
    assert submitted.cell.outcomes == ["scored", "scored"]
    said(job, "configuration: ", "container: a container of", "2/2 planned trials scored")
    results = Cell(Path(job["results"]) / "cell")
    assert results.result == submitted.cell.result
    assert (results.folder / "metrics.json").exists()
    assert "told: ${TEST_WORD}" in next(results.folder.glob("job/*/agent/scripted.txt")).read_text()
    assert files_with(secret, results.folder, submitted.place, Path(job["written"], "var/tmp")) == []
    assert secret not in job["log"]
    # A job that was preempted after its last trial: the next attempt has nothing to do.
    again = submitted.again().over()
    assert again["exit_code"] == 0
    said(again, "nothing is left to do")
    assert "container" not in again["log"]


def test_an_agent_asks_the_model_that_the_job_serves(submit, tmp_path):
    task = make_task(tmp_path / "mine", REWARD_IF_OK, TASK_TOML.replace("no-network", "public"))
    served = ("serve=vllm", f"serve.command=[python,{FAKE_VLLM}]", "model=hf", "model.id=org/tiny", "serve.tp=1")
    asks = agent("Asks", questions=2)
    submitted = submit("benchmark=task", f"benchmark.path={task}", *served, *asks, "launcher.gpus=1", "attempts=2")
    job = submitted.over()
    assert job["exit_code"] == 0, job["log"]
    assert submitted.cell.outcomes == ["scored"] * 2
    assert "loading org/tiny" in (submitted.cell.folder / "serve.log").read_text()


def test_a_task_of_several_containers(submit, tmp_path):
    test = '[ "$(cat /root/answer.txt)" = from-web ] && r=1 || r=0; echo $r > /logs/verifier/reward.txt'
    task = make_task(tmp_path / "two", test, TWO_CONTAINERS)
    (task / "environment" / "docker-compose.yaml").write_text(COMPOSE)
    submitted = submit("benchmark=task", f"benchmark.path={task}", *agent("Scripted", command=ASK))
    job = submitted.over()
    assert job["exit_code"] == 0, job["log"]
    assert submitted.cell.trial()["reward"] == 1


@pytest.mark.parametrize("how", ["preempt", "kill"])
def test_a_preempted_job_goes_on_where_it_was(submit, how):
    """Told to end, or with its node gone: trials that were over are not run again (promise 19)."""
    command = "printf ok > answer.txt"
    stays = f"while [ ! -e /gate/open ]; do sleep 0.1; done; {command}"
    waits = agent("Scripted", command=command, by_attempt={2: stays})
    gate = f"backend.run_args=[-v,/weka/{BUCKET}:/gate]"
    submitted = submit("benchmark=hello", *waits, "attempts=2", "concurrency=1", gate)
    (submitted.server.weka(BUCKET) / "open").unlink(missing_ok=True)
    first = submitted.cell.folder / "job" / "hello__001" / "result.json"
    submitted.wait_for(lambda: first.exists() and "agent" in submitted.cell.status["attempts"]["running"].values())
    before = first.read_bytes()
    getattr(submitted.server, how)(submitted.jobs[0]["id"])
    submitted.server.wait_for(lambda _: len(submitted.jobs) == 2, 120)
    assert first.read_bytes() == before
    (submitted.server.weka(BUCKET) / "open").touch()
    job = submitted.over()
    assert [one["canceled"] for one in submitted.jobs] == [True, False]
    assert submitted.jobs[0]["exit_code"] == {"preempt": 130, "kill": 137}[how], submitted.jobs[0]["log"]
    assert job["exit_code"] == 0, job["log"]
    assert submitted.cell.outcomes == ["scored"] * 2
    assert first.read_bytes() == before


def test_a_run_that_fails_ends_with_its_own_code_and_is_kept(submit, tmp_path):
    task = make_task(tmp_path / "mine", "echo no reward", TASK_TOML)
    submitted = submit("benchmark=task", f"benchmark.path={task}", *agent("Scripted"))
    job = submitted.over()
    assert (job["status"], job["exit_code"]) == ("failed", 1), job["log"]
    assert submitted.cell.outcomes == ["eval_failed"]
    assert Cell(Path(job["results"]) / "cell").result == submitted.cell.result


def test_a_job_that_cannot_be_made_ready_says_why_and_is_kept(submit):
    submitted = submit("benchmark=hello", "agent=oracle", "backend.image=localhost/nowhere:1")
    job = submitted.over()
    assert job["exit_code"] == 1
    said(job, "ERROR ptb_runner.launch.beaker_job: no container of localhost/nowhere:1 runs in this job: Error")
    for folder in (submitted.cell.folder, Path(job["results"]) / "cell"):
        assert Cell(folder).status["state"] == "failed"
        assert "localhost/nowhere:1" in Cell(folder).status["error"]


def test_what_the_runner_finds_lacking_is_the_reason(submit):
    """Other backends are looked at by the cell's own preflight; bubblewrap can do nothing in such a job."""
    submitted = submit("benchmark=hello", "agent=oracle", sandboxes=("backend=bubblewrap",))
    assert submitted.over()["exit_code"] == 1
    assert submitted.cell.status["state"] == "failed"
    assert "bubblewrap cannot make a sandbox here" in submitted.cell.status["error"]


def test_a_commit_is_cloned_instead_of_a_wheel(submit):
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    source = {"PTB_GIT_URL": str(ROOT), "PTB_GIT_COMMIT": commit.strip()}
    submitted = submit("benchmark=hello", *agent("Honest"), env=source)  # an agent that is in the repository only
    job = submitted.over()
    assert job["exit_code"] == 0, job["log"]
    assert submitted.cell.outcomes == ["scored"]
    assert submitted.cell.result["provenance"]["git"]["commit"] == commit.strip()


def test_a_bare_debian_is_made_ready(submit, beaker_server, tmp_path):
    """Nothing of what is needed is in the image: podman, crun, git and uv are installed by the job."""
    archive = Path(os.environ.get("PTB_CACHE", "/var/cache/ptb-tests")) / "ptb-base-bookworm.tar"
    with tarfile.open(archive) as packed:
        packed.extractall(tmp_path / "debian", filter="fully_trusted")
    beaker_server.image("debian", tmp_path / "debian")
    for name in ("etc/resolv.conf", "etc/ssl/certs/ca-certificates.crt"):  # as the machine's own network wants it
        shutil.copy(f"/{name}", tmp_path / "debian" / name)
    (tmp_path / "debian/usr/local/bin/python3.12").symlink_to(Path(sys.base_prefix, "bin", "python3.12"))
    env = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
    submitted = submit("benchmark=hello", "agent=oracle", "launcher.image=docker://debian", env=env)
    job = submitted.over()
    assert job["exit_code"] == 0, job["log"]
    said(job, "installing podman uidmap fuse-overlayfs", "python3-venv", "installing uv")
    assert submitted.cell.outcomes == ["scored"]
    shutil.rmtree(tmp_path / "debian")


# --- What can go wrong before the program is there ----------------------------------------------------


def entry(folder: Path, programs: dict[str, str], **env: str) -> list[str]:
    """Run the entry script with no other programs than these and a few of every system; what it said at its end."""
    for name, script in programs.items():
        (folder / name).write_text(f"#!/bin/bash\n{script}\n")
        (folder / name).chmod(0o755)
    for name in ("id", "mkdir", "tail", "tr"):
        (folder / name).symlink_to(shutil.which(name) or "")
    command = [shutil.which("bash") or "", str(TEMPLATES / "beaker" / "entry.sh")]
    places = {"PATH": str(folder), "PTB_CODE": str(folder), "PTB_HOME": str(folder / "home")}
    done = subprocess.run(command, env=places | env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    lines = done.stderr.splitlines()
    assert len(lines) == 2, lines
    assert lines[1].startswith("  ")
    return lines


THERE = dict.fromkeys(("podman", "crun", "git", "uv"), "exit 0")


def test_an_image_without_podman_in_which_nothing_can_be_installed(tmp_path):
    said, remedy = entry(tmp_path, {"uv": "exit 0", "git": "exit 0"})
    assert "lacks podman uidmap fuse-overlayfs crun" in said
    assert "launcher.image" in remedy


def test_packages_that_cannot_be_installed(tmp_path):
    fails = 'case $1 in install) echo "E: Unable to locate package crun"; exit 100;; esac'
    there = {name: script for name, script in THERE.items() if name != "crun"}
    said, _ = entry(tmp_path, {**there, "apt-get": fails})
    assert said == "apt-get cannot install crun: E: Unable to locate package crun "


def test_a_program_that_cannot_be_installed(tmp_path):
    said, remedy = entry(tmp_path, {**THERE, "uv": "[ $1 = venv ] || { echo error: no index >&2; exit 2; }"})
    assert said == "the program cannot be installed: error: no index "
    assert "UV_DEFAULT_INDEX" in remedy


def test_a_commit_that_cannot_be_fetched(tmp_path):
    git = "[ $1 = init ] && { mkdir -p $3; exit; }; echo fatal: not our ref; exit 128"
    said, remedy = entry(tmp_path, {**THERE, "git": git}, PTB_GIT_URL="/repository", PTB_GIT_COMMIT="0a1b")
    assert said == "/repository: commit 0a1b cannot be fetched: fatal: not our ref "
    assert "launcher.code=wheel" in remedy
