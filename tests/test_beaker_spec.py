"""A cell as a Beaker experiment, and what is refused before Beaker is asked anything."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import pytest
import yaml
from beaker import BeakerExperimentSpec, BeakerRetrySpec, BeakerTaskResources

from ptb_runner import plan
from ptb_runner.config import ServeConfig, VllmServeConfig, without_secrets
from ptb_runner.doctor import compose
from ptb_runner.launch import beaker_client, beaker_spec, shipping
from ptb_runner.launch.beaker_spec import Shipped, Source

MODEL = ("model=hf", "model.id=allenai/open_instruct_dev", "model.revision=sft_qwen3_4b_tmax_4node")
HELLO = (*MODEL, "benchmark=hello", "backend=beaker", "backend.image=ubuntu:24.04")
SHIPPED = Shipped("code-id", "cell-id", "/weka/oe-adapt-default/ptb_runner/s/0-1")


@pytest.fixture
def make(tmp_path, monkeypatch):
    """The experiment of a cell with some overrides."""

    def make(*overrides: str, shipped: Shipped = SHIPPED) -> BeakerExperimentSpec:
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        folder.mkdir()
        config = compose([*HELLO, *overrides])
        cell = plan.prepare(config, without_secrets(_plain(overrides)), folder, list(overrides))
        return beaker_spec.experiment(cell, shipped)

    return make


def _plain(overrides):
    from hydra import compose, initialize_config_dir

    from ptb_runner.paths import CONF

    with initialize_config_dir(str(CONF), version_base="1.3"):
        return compose("config", [*HELLO, *overrides])


def variables(spec: BeakerExperimentSpec) -> dict[str, str]:
    return {
        one.name: one.value or "" if one.secret is None else f"secret {one.secret}"
        for one in spec.tasks[0].env_vars or []
    }


def test_the_setup_of_ai2_is_the_default(make):
    spec = make()
    (task,) = spec.tasks
    assert (spec.budget, task.constraints.cluster, task.context.priority.name) == (
        "ai2/oe-adapt",
        ["ai2/saturn"],
        "high",
    )
    assert (task.resources.gpu_count, task.timeout, task.result.path) == (8, 24 * 3600 * 10**9, "/results")
    assert task.context.auto_resume is True
    mounts = {one.mount_path: one.source.beaker or one.source.weka for one in task.datasets}
    assert mounts == {"/ptb/code": "code-id", "/ptb/cell": "cell-id", "/weka/oe-adapt-default": "oe-adapt-default"}
    assert variables(spec)["PTB_RESULTS"] == SHIPPED.results
    assert variables(spec)["HF_TOKEN"] == "secret HF_TOKEN"


def test_what_is_printed_is_what_beaker_reads(make):
    spec = make("launcher.retries=2", "launcher.min_runtime_hours=1.5", "launcher.memory_gb=100")
    read = BeakerExperimentSpec.from_json(yaml.safe_load(beaker_spec.as_yaml(spec)))
    assert read.to_json() == spec.to_json()
    assert read.retry == BeakerRetrySpec(allowed_task_retries=2)
    assert read.tasks[0].context.min_runtime == 5400 * 10**9
    assert read.tasks[0].resources == BeakerTaskResources(gpu_count=8, memory="100GiB", shared_memory="64GiB")


def test_a_model_is_served_on_all_gpus_of_the_job():
    config = compose([*HELLO])
    assert (config.launcher.kind, config.serve.kind, config.agent.id) == ("beaker", "vllm", "terminus-2")
    assert (*spread(config.serve), config.concurrency) == (8, 1, 8008, 8)
    own = compose([*HELLO, "launcher.gpus=4", "serve.tp=2", "serve.dp=2", "serve.port=9000", "concurrency=3"])
    assert (*spread(own.serve), own.concurrency) == (2, 2, 9000, 3)
    here = compose([*MODEL, "benchmark=hello", "backend=podman", "serve=vllm"])
    assert spread(here.serve) == (1, 1, None)


def spread(serve: ServeConfig) -> tuple[int, int, int | None]:
    assert isinstance(serve, VllmServeConfig)
    return serve.tp, serve.dp, serve.port


def test_keys_are_secrets_by_name(make, monkeypatch):
    monkeypatch.setenv("MY_KEY", "value-of-my-key")
    spec = make(
        "agent.env_vars=[MY_KEY,OTHER_KEY]",
        "++launcher.beaker_secrets={OTHER_KEY: alice_other, WANDB_API_KEY: alice_wandb}",
        "launcher.hf_token_secret=alice_hf",
        "launcher.registry=registry.example",
        "launcher.registry_user=alice",
        "launcher.registry_token_secret=alice_registry",
        "++launcher.env.HF_HOME=/weka/oe-adapt-default/hf",
    )
    found = variables(spec)
    assert {name: value for name, value in found.items() if value.startswith("secret")} == {
        "HF_TOKEN": "secret alice_hf",
        "MY_KEY": "secret MY_KEY",
        "OTHER_KEY": "secret alice_other",
        "WANDB_API_KEY": "secret alice_wandb",
        "PTB_REGISTRY_TOKEN": "secret alice_registry",
    }
    assert found["HF_HOME"] == "/weka/oe-adapt-default/hf"
    assert set(found["PTB_SECRETS"].split(",")) == {name for name, value in found.items() if value.startswith("secret")}
    assert "value-of-my-key" not in json.dumps(spec.to_json())


def test_sandboxes_on_modal_need_its_token_and_no_podman(make):
    found = variables(make("backend=modal", "launcher=beaker", "serve=none", "agent=oracle"))
    assert found["MODAL_TOKEN_ID"] == "secret MODAL_TOKEN_ID"
    assert "BEAKER_ALLOW_SUBCONTAINERS" not in found


def test_a_commit_to_clone_is_named(make):
    shipped = Shipped("code-id", "cell-id", None, Source("https://example.org/x.git", "abc123"))
    found = variables(make("launcher.results_dir=null", "launcher.weka=[]", "launcher.code=git", shipped=shipped))
    assert (found["PTB_GIT_URL"], found["PTB_GIT_COMMIT"]) == ("https://example.org/x.git", "abc123")
    assert found["PTB_RESULTS"] == "/results"


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["launcher=inline"], "leave launcher=inline out, or type backend=podman"),
        (["backend=docker", "launcher=beaker"], "type backend=beaker"),
        (["launcher.cluster=[]"], "launcher.cluster: needs a value"),
        (["launcher.cluster=[saturn]"], "launcher.cluster=saturn: not of the form ORG/NAME"),
        (["launcher.budget=''"], "launcher.budget=: not of the form ORG/NAME"),
        (["launcher.workspace=mine"], "launcher.workspace=mine: not of the form"),
        (["launcher.image=ubuntu"], "type docker://NAME"),
        (["launcher.results_dir=/data"], "would be lost with the job"),
        (["launcher.results_dir=/weka/oe-adapt-default/../x"], "would be lost with the job"),
        (["serve.dp=2"], "type serve.tp=4, or launcher.gpus=16"),
        (["serve.dp=9"], "type serve.dp=1"),
        (["launcher.registry=x"], "give all three, or none"),
        (["launcher.hf_token_secret='hf_ abc'"], "give the name of a Beaker secret, never its value"),
        (["launcher.beaker_secrets.OPENAI_API_KEY=sk-abcdefghijklmnop1234"], "give the name of a Beaker secret, never"),
        (["launcher.hf_token_secret=hf_AbCdEfGh0123"], "give the name of a Beaker secret, never its value"),
        (["launcher.env.MINE=hf_AbCdEfGh0123"], "launcher.env.MINE: would stand in the job's specification"),
        (["launcher.env.PTB_CELL=7"], "the variable PTB_CELL is set by Beaker or by the launcher"),
        (["launcher.env.MY_TOKEN=abc"], "type launcher.beaker_secrets.MY_TOKEN=SECRET"),
        (["launcher.timeout_hours=0.1"], "too short for one trial, which may take 0.2 h"),
        (["launcher.timeout_hours=0"], "takes a number above 0"),
        (["launcher.min_runtime_hours=48"], "type at most launcher.timeout_hours=24"),
        (["launcher.priority=soon"], "launcher.priority takes low | normal | high | urgent | immediate"),
        (["serve=external", "serve.base_url=http://127.0.0.1:8000/v1"], "a Beaker job is on another machine"),
        (["agent=codex", "agent.model=null", "agent.auth=subscription"], "type agent.auth=api_key"),
    ],
)
def test_what_cannot_work_is_refused_with_the_fix(ptb, overrides, said):
    ran = ptb(*HELLO, *overrides)
    assert ran.code == 2
    assert said in ran.err
    assert "AbCd" not in ran.out + ran.err
    assert not list(Path.cwd().iterdir())


def test_a_value_of_a_variable_gets_into_no_specification(ptb, monkeypatch):
    monkeypatch.setenv("MINE", "value-of-mine")
    ran = ptb(*HELLO, "launcher.env.X=${oc.env:MINE}", "dry_run=true")
    assert (ran.code, "value-of-mine" in ran.out + ran.err) == (2, False)


def test_a_dry_run_prints_the_experiment_and_needs_no_account(ptb, monkeypatch, tmp_path):
    for name in ("BEAKER_TOKEN", "BEAKER_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("beaker.config.DEFAULT_CONFIG_LOCATION", tmp_path / "none.yml")
    ran = ptb(*HELLO, "dry_run=true", "hydra.run.dir=run")
    assert ran.code == 1
    assert "there is no token for Beaker" in ran.out
    text = ran.out.partition("# experiment ")[2].partition("\n")[2].partition("not ready")[0]
    spec = BeakerExperimentSpec.from_json(yaml.safe_load(text))
    assert spec.tasks[0].command == ["bash", "/ptb/code/entry.sh"]
    assert Path("run/0/task/task.toml").is_file()  # one cell is a sweep of one


def test_a_configuration_file_that_is_not_there_does_not_mean_production(ptb, monkeypatch):
    monkeypatch.setenv("BEAKER_CONFIG", "/nowhere/config.yml")
    monkeypatch.setenv("BEAKER_TOKEN", "made-up-and-never-used")
    ran = ptb(*HELLO)
    assert (ran.code, ran.err) == (
        2,
        "error: BEAKER_CONFIG=/nowhere/config.yml: no such file\n  name Beaker's configuration file, or unset it\n",
    )
    assert not list(Path.cwd().rglob("cell.yaml"))


@pytest.mark.parametrize("text", ["", "foo: 1", "user_token: [", "user_token: ''"])
def test_a_configuration_file_without_a_token_is_told(tmp_path, monkeypatch, text):
    (tmp_path / "config.yml").write_text(text)
    monkeypatch.setenv("BEAKER_CONFIG", str(tmp_path / "config.yml"))
    first, then = (beaker_client.problem() or "").splitlines()
    assert first.startswith(f"{tmp_path / 'config.yml'}: not usable for Beaker: ")
    assert "__init__" not in first
    assert "beaker configure" in then


def test_a_wheel_holds_the_program_and_is_the_same_each_time(tmp_path):
    from ptb_runner.launch import frozen

    code = frozen.freeze(tmp_path, [compose([])])
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    first, second = shipping.wheel(code, tmp_path / "a"), shipping.wheel(code, tmp_path / "b")
    assert first.read_bytes() == second.read_bytes()
    with zipfile.ZipFile(first) as archive:
        names = set(archive.namelist())
    assert {"ptb_runner/run.py", "ptb_runner/conf/config.yaml", "git.json"} <= names
    assert any(name.startswith("ptb_runner/templates/") for name in names)
    assert not [name for name in names if name.startswith(("conf/", "templates/"))]
