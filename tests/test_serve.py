"""Served models, with a stand-in for vLLM that is a real process on a real port."""

from __future__ import annotations

import csv
import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig

from ptb_runner import check, harbor_job, pointing, serve
from ptb_runner.cell import identity_of, read_cell
from ptb_runner.config import register, typed, without_secrets
from ptb_runner.meter import Meter
from ptb_runner.paths import CONF
from ptb_runner.redact import Redactor
from ptb_runner.result import rescore
from ptb_runner.results import overview
from ptb_runner.results.rows import read_rows
from ptb_runner.server import Server
from tests.fakes import model_server
from tests.run_kit import REWARD_IF_OK, TASK_TOML, agent, in_phase, is_alive, make_task, only_cell, start
from tests.served_kit import TERMINUS_WRITES_OK

FAKE = Path(__file__).parent / "fakes" / "vllm_server.py"
MODEL = ("model=hf", "model.id=org/tiny", "model.revision=abc")
VLLM = ("serve=vllm", f"serve.command=[{sys.executable},{FAKE}]", "serve.health_sec=5", "retry.wait_sec=0")


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Tell the stand-in how to behave."""

    def tell(**how: Any) -> None:
        named = {name: str(tmp_path / name) for name in ("starts", "children", "record")}
        monkeypatch.setenv("FAKE_VLLM", json.dumps(named | how))

    tell()
    return tell


@pytest.fixture
def task(tmp_path: Path) -> str:
    """A task whose sandboxes have a network."""
    folder = make_task(tmp_path / "mine", REWARD_IF_OK, TASK_TOML.replace("no-network", "public"))
    return f"benchmark.path={folder}"


def children(tmp_path: Path) -> list[psutil.Process]:
    """The stand-in's children that are still there."""
    pids = map(int, (tmp_path / "children").read_text().split())
    return [process for pid in pids if psutil.pid_exists(pid) and is_alive(process := psutil.Process(pid))]


def test_an_agent_in_a_sandbox_asks_the_model_that_is_served(ptb, fake, task, tmp_path, monkeypatch):
    fake(delay=0.3, loading=0.3)
    monkeypatch.setenv("VLLM_PORT", "1234")
    more = ("serve.tp=2", "serve.max_model_len=2048", "serve.extra_args=[--seed,'7']", "attempts=2")
    ran = ptb("benchmark=task", task, *MODEL, *VLLM, *agent("Asks"), *more)
    assert ran.code == 0, ran.out + ran.err
    cell = only_cell()
    assert cell.outcomes == ["scored", "scored"]
    said = json.loads((tmp_path / "record").read_text())
    assert said["arguments"][0] == "org/tiny"
    for option, value in {"--revision": "abc", "--tokenizer-revision": "abc", "--tool-call-parser": "hermes"}.items():
        assert said["arguments"][said["arguments"].index(option) + 1] == value
    assert said["arguments"][-2:] == ["--seed", "7"]
    assert "VLLM_PORT" not in said["variables"]
    served = cell.result["provenance"]["served"]
    assert (served["version"], served["served_name"], served["starts"]) == ("0.19.1+fake", "tiny", 1)
    assert "loading org/tiny" in (cell.folder / "serve.log").read_text()
    assert children(tmp_path) == []


def test_a_server_that_dies_in_mid_run_is_started_again_and_the_trials_with_it(ptb, fake, task, tmp_path):
    fake(die_at=4, deaths=1, slow=0.2)  # one to be ready, two of the first trials
    ran = ptb("benchmark=task", task, *MODEL, *VLLM, *agent("Asks", questions=2), "attempts=2", "concurrency=1")
    assert ran.code == 0, ran.out + ran.err
    cell = only_cell()
    assert cell.outcomes == ["scored", "scored"]
    assert "CUDA out of memory" in ran.out
    assert cell.result["provenance"]["served"]["starts"] == 2
    assert len((tmp_path / "starts").read_text()) == 2
    assert len(list((cell.folder / "superseded").iterdir())) >= 1


@pytest.mark.serve
def test_a_server_that_dies_too_often_leaves_infra_errors_with_its_last_words(ptb, fake, task, tmp_path):
    fake(die_at=2)
    ran = ptb("benchmark=task", task, *MODEL, *VLLM, *agent("Asks"), "attempts=2", "serve.max_restarts=1")
    assert ran.code == 1, ran.out + ran.err
    cell = only_cell()
    assert cell.outcomes == ["infra_error"] * 2
    assert all("CUDA out of memory" in trial["error"]["message"] for trial in cell.result["trials"])
    assert cell.result["score"]["raw"] is None
    assert len((tmp_path / "starts").read_text()) == 2
    assert cell.status["state"] == "finished"
    assert children(tmp_path) == []


def test_a_server_that_never_gets_ready_spends_nothing(ptb, fake, task, tmp_path):
    fake(loading=600)
    more = ("serve.ready_timeout_sec=1", "serve.max_restarts=0")
    ran = ptb("benchmark=task", task, *MODEL, *VLLM, *agent("Asks"), *more)
    assert ran.code == 1, ran.out + ran.err
    (trial,) = only_cell().result["trials"]
    assert trial["outcome"] == "infra_error"
    assert "serve.ready_timeout_sec" in trial["error"]["message"]
    assert trial["durations_sec"]["agent"] is None
    assert children(tmp_path) == []


def test_a_score_that_was_earned_by_a_failing_server_does_not_count(ptb, fake, task, tmp_path):
    fake(sick_at=2, deaths=1)  # the agent gives up, and the verifier says 0
    ran = ptb("benchmark=task", task, *MODEL, *VLLM, *agent("Asks", forgiving=True))
    assert ran.code == 0, ran.out + ran.err
    cell = only_cell()
    assert cell.trial()["reward"] == 1
    assert len((tmp_path / "starts").read_text()) == 2
    (before,) = (cell.folder / "superseded").iterdir()
    assert json.loads((before / "result.json").read_text())["verifier_result"]["rewards"] == {"reward": 0.0}


@pytest.mark.serve
def test_a_server_that_hangs_counts_as_dead(ptb, fake, task, tmp_path):
    fake(hang_at=2)
    more = ("serve.max_restarts=0", "serve.health_sec=0.3")
    ran = ptb("benchmark=task", task, *MODEL, *VLLM, *agent("Asks"), *more)
    assert ran.code == 1, ran.out + ran.err
    assert "did not answer" in only_cell().trial()["error"]["message"]


@pytest.mark.serve
def test_a_neighbours_server_is_not_taken_for_ours(ptb, fake, task, monkeypatch, tmp_path):
    with model_server.serving([]) as neighbour:
        # Ours takes its time, and theirs answers every key at the port that was free a moment ago.
        monkeypatch.setattr("ptb_runner.serve.free_port", lambda: neighbour.server_port)
        fake(delay=30)
        ran = ptb("benchmark=task", task, *MODEL, *VLLM, *agent("Asks"), "serve.max_restarts=0")
        fixed = ptb("benchmark=task", task, *MODEL, *VLLM, *agent("Asks"), f"serve.port={neighbour.server_port}")
    assert ran.code == 1, ran.out + ran.err
    assert "takes any key" in only_cell().trial()["error"]["message"]
    assert fixed.code == 2
    assert "is taken" in fixed.err


@pytest.mark.serve
def test_a_killed_runner_leaves_no_server(fake, task, tmp_path):
    fake(stubborn=True, slow=60)
    running = start(tmp_path, "benchmark=task", task, *MODEL, *VLLM, *agent("Asks"))
    running.wait_for(in_phase("agent"), timeout_sec=120)
    left = children(tmp_path)
    assert len(left) == 2
    running.process.kill()
    running.process.wait()
    _, alive = psutil.wait_procs(left, timeout=30)
    assert alive == []


@pytest.mark.serve
def test_an_interrupted_run_ends_its_server(fake, task, tmp_path):
    fake(slow=60)
    running = start(tmp_path, "benchmark=task", task, *MODEL, *VLLM, *agent("Asks"))
    running.wait_for(in_phase("agent"), timeout_sec=120)
    assert running.end(signal.SIGINT, within_sec=20) == 130
    assert children(tmp_path) == []


def test_cells_that_need_the_same_model_share_its_server(ptb, fake, task, tmp_path):
    swept = ("attempts=1", "model.revision=abc,def", "seed=1,2")
    ran = ptb("-m", "benchmark=task", task, "model=hf", "model.id=org/tiny", *VLLM, *agent("Asks"), *swept)
    assert ran.code == 0, ran.out + ran.err
    assert len((tmp_path / "starts").read_text()) == 2
    (sweep,) = tmp_path.glob("cwd/multirun/*/*")
    logs = {json.loads((sweep / str(number) / "serve.json").read_text())["log"] for number in range(4)}
    assert len(logs) == 2
    assert children(tmp_path) == []


def test_one_that_runs_elsewhere_is_used_and_left_alone(ptb, task):
    with model_server.serving([{"match": "Hi", "say": "hello"}]) as server:
        external = ("serve=external", f"serve.base_url={server.url}", "serve.served_name=its-name")
        ran = ptb("benchmark=task", task, *MODEL, *external, *agent("Asks"))
        assert ran.code == 0, ran.out + ran.err
        assert [body["model"] for body in server.log] == ["its-name"]


def composed(*overrides: str) -> DictConfig:
    register()
    with initialize_config_dir(str(CONF), version_base="1.3"):
        return compose("config", list(overrides))


@pytest.mark.parametrize(
    ("more", "told"),
    [
        (["model=none", "model.id=none"], "no model to serve"),
        (["benchmark=addition"], "post-trains its model"),
        (["agent.model=openai/gpt-5"], "agent.model"),
        (["agent=gemini-cli", "agent.model=null"], "Google's API only"),
        (["model.hub_id=/nowhere"], "no such folder"),
        (["serve.port=70000"], "at most 65535"),
        (["launcher=modal"], "have no GPU"),
        (["+serve.env.HF_TOKEN=hf_abcdef"], "looks like a secret"),
        (["serve=external", "serve.base_url=node7"], "no http(s) URL"),
    ],
)
def test_what_cannot_be_served_is_a_fault_of_the_configuration(more, told):
    given = [] if more[0].startswith("serve=external") else [*VLLM]
    config = composed("benchmark=hello", *MODEL, *given, "agent=nop", *more)
    assert any(told in fault for fault in check.problems(config, [str(CONF)]))


def test_what_this_machine_lacks_is_told_before_anything_starts(ptb, task, monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    given = ("benchmark=task", task, *MODEL, "serve=vllm", *agent("Asks"), "serve.tp=64")
    ran = ptb(*given)
    assert ran.code == 2
    assert "takes 64 GPUs" in ran.err
    monkeypatch.setenv("PATH", "/usr/sbin")
    lacks = serve.machine_problems(typed(composed("benchmark=hello", *MODEL, "serve=vllm")))
    assert "no program uvx" in lacks[0]


def test_a_dry_run_shows_the_command_and_starts_nothing(ptb, fake, task, tmp_path):
    ran = ptb("benchmark=task", task, *MODEL, *VLLM, *agent("Asks"), "+serve.env.HF_HOME=/models", "dry_run=true")
    assert ran.code == 0, ran.out + ran.err
    shown = "".join(ran.out.split())
    assert "vllm_server.pyorg/tiny--revisionabc" in shown.replace("│", "")
    assert "HF_HOME" in shown
    assert "/models" not in shown
    assert not (tmp_path / "starts").exists()


def test_what_is_run_for_the_model():
    own = ("serve=vllm", "serve.tp=4", "serve.dp=2", "serve.tokenizer_revision=def", "serve.reasoning_parser=qwen3")
    config = typed(composed("benchmark=hello", *MODEL, *own, "serve.extra_args=[--seed,'7']"))
    assert serve.command(config, 8008) == [
        *("uvx", "vllm==0.19.1", "serve", "org/tiny", "--revision", "abc", "--tokenizer-revision", "def"),
        *("--served-model-name", "tiny", "--host", "127.0.0.1", "--port", "8008"),
        *("--tensor-parallel-size", "4", "--data-parallel-size", "2", "--reasoning-parser", "qwen3"),
        *("--enable-auto-tool-choice", "--tool-call-parser", "hermes", "--seed", "7"),
    ]
    plain = typed(composed("benchmark=hello", *MODEL, "serve=vllm", "serve.tool_parser=null"))
    assert not {"--enable-auto-tool-choice", "--reasoning-parser", "--max-model-len"} & set(serve.command(plain, 1))
    assert serve.server_gpus(config) == 8


def test_where_it_listens_makes_no_other_cell_and_what_it_runs_does(tmp_path):
    def identity(*more: str) -> dict[str, Any]:
        return identity_of(without_secrets(composed("benchmark=hello", *MODEL, "serve=vllm", *more)), tmp_path)

    own = identity()
    assert identity("serve.port=5555", "serve.tp=2", "serve.dp=2", "serve.ready_timeout_sec=5") == own
    for other in ("serve.version=0.20.0", "serve.max_model_len=99", "serve.tool_parser=qwen3_xml", "model.revision=x"):
        assert identity(other) != own


@pytest.mark.parametrize(
    ("name", "model", "given"),
    [
        ("terminus-2", "hosted_vllm/tiny", {"HOSTED_VLLM_API_KEY": "ptb-key"}),
        ("claude-code", "anthropic/tiny", {"ANTHROPIC_API_KEY": "ptb-key", "ANTHROPIC_BASE_URL": "http://{}:8008"}),
        ("codex", "openai/tiny", {"OPENAI_API_KEY": "ptb-key", "OPENAI_BASE_URL": "http://{}:8008/v1"}),
        ("opencode", "hosted_vllm/tiny", {"OPENAI_API_KEY": "ptb-key"}),
    ],
)
def test_each_agent_is_pointed_at_it_in_its_own_way(name, model, given, tmp_path):
    """In a container with a network of its own; Terminus 2 runs beside the runner."""
    from harbor.agents.factory import resolve_agent_model_connection
    from harbor.models.trial.config import TrialConfig

    own = ("serve.address=host.name", f"agent={name}", "agent.model=null", "agent.env_vars=[]")
    config = typed(composed("benchmark=hello", *MODEL, "serve=vllm", *own))
    server = Server(config, tmp_path / "serve.log", Redactor({}))
    server.key, server.max_model_len, server._port = "ptb-key", 4096, 8008
    plain = TrialConfig.model_validate({"task": {"path": tmp_path}, "agent": harbor_job.agent_fields(config)})
    agent = pointing.at_server(plain, config, server).agent
    where = "127.0.0.1" if name == "terminus-2" else "host.name"
    assert agent.model_name == model
    found = resolve_agent_model_connection(agent)
    assert (found.resolved_base_url or "").removesuffix("/v1") == f"http://{where}:8008"
    assert found.model_id == "tiny"
    for variable, value in given.items():
        assert found.env[variable] == value.format(where)
    assert (agent.kwargs.get("model_info") or {}).get("max_input_tokens") == (4096 if name == "terminus-2" else None)


@pytest.mark.serve
def test_one_that_runs_elsewhere_and_stops_leaves_infra_errors(ptb, task, fake, monkeypatch):
    port = serve.free_port()
    monkeypatch.setenv("VLLM_API_KEY", "its-key")
    fake(sick_at=2)
    named = ["--served-model-name", "it", "--host", "127.0.0.1", "--port", str(port)]
    elsewhere = subprocess.Popen([sys.executable, FAKE, "org/tiny", *named])
    try:
        url = f"serve.base_url=http://127.0.0.1:{port}/v1"
        external = ("serve=external", url, "serve.served_name=it", "serve.api_key_var=VLLM_API_KEY")
        ran = ptb("benchmark=task", task, *MODEL, *external, "serve.health_sec=0.3", *agent("Asks", forgiving=True))
        assert elsewhere.poll() is None
    finally:
        elsewhere.kill()
        elsewhere.wait()
    assert ran.code == 1, ran.out + ran.err
    (trial,) = only_cell().result["trials"]
    assert (trial["outcome"], trial["reward"]) == ("infra_error", None)
    assert "did not answer" in trial["error"]["message"]
    assert "its-key" not in (only_cell().folder / "cell.yaml").read_text()


# --- What a server's GPUs cost, and its log -----------------------------------------------------------


def test_the_hours_of_a_shared_server_are_divided_and_none_counts_twice():
    now = [0.0]
    meter = Meter(gpus=8, clock=lambda: now[0])

    def pass_hours(hours: float) -> None:
        now[0] += hours * 3600

    meter.joins("a", 5.0)  # had by an earlier run
    pass_hours(1)  # it waits: no server yet
    meter.starts()
    pass_hours(1)
    meter.joins("b", 0.0)
    meter.joins("b", 0.0)
    pass_hours(2)
    meter.leaves("a")
    pass_hours(1)
    meter.ends()
    pass_hours(10)  # dead
    meter.starts()
    meter.leaves("b")
    pass_hours(0.5)  # nobody's: the next one's
    meter.joins("c", 0.0)
    pass_hours(1)
    assert {name: meter.of(name) for name in "abc"} == pytest.approx({"a": 5 + 8 + 8, "b": 8 + 8, "c": 4 + 8})


def test_a_servers_hours_and_log_are_found_where_they_are_looked_for(ptb, fake, task, monkeypatch):
    begun = time.monotonic()
    sweep = ("-m", "benchmark=task", task, *MODEL, *VLLM, "serve.tp=4", *agent("Asks"), "seed=1,2", "launcher=inline")
    ran = ptb(*sweep, "backend.usd_per_gpu_hour=100", "hydra.sweep.dir=all")
    most = (time.monotonic() - begun) / 3600 * 4
    assert ran.code == 0, ran.out + ran.err
    lines = list(csv.DictReader(Path("all/results.csv").read_text().splitlines()))
    hours = [float(line["server_gpu_hours"]) for line in lines]
    assert min(hours) > 0
    assert sum(hours) < most
    results = [json.loads(Path(f"all/{number}/result.json").read_text()) for number in (0, 1)]
    assert [result["server_gpu_hours"] for result in results] == hours
    assert json.loads(Path("all/metrics.json").read_text())["server_gpu_hours"] == pytest.approx(sum(hours))
    spent = json.loads(Path("all/0/status.json").read_text())["spent"]
    assert (spent["gpu_hours"], spent["usd"]) == pytest.approx((hours[0], 100 * hours[0]), abs=1e-5)
    (row,) = overview.spending(read_rows(Path("all")))
    assert row["server_gpu_hours"] == pytest.approx(sum(hours))

    told = ptb("logs", "all", "1", "--serve")
    assert told.code == 0
    assert "loading org/tiny" in told.out
    plain = ptb("logs", "all", "1")
    assert "loading org/tiny" not in plain.out
    assert plain.err == "its model server's log: ptb logs all 1 --serve\n"
    refused = ptb("logs", "all", "1/mine__001", "--serve")
    assert (refused.code, "a trial has no server of its own" in refused.err) == (2, True)


@pytest.mark.serve
def test_a_cap_on_gpu_hours_counts_the_server(ptb, fake, task):
    sweep = ("-m", "benchmark=task", task, *MODEL, *VLLM, *agent("Asks"), "seed=1,2", "launcher.max_cells=1")
    ran = ptb(*sweep, "limits.max_gpu_hours=0.000001", "hydra.sweep.dir=all")
    assert ran.code == 1, ran.out + ran.err
    states = [json.loads(Path(f"all/{number}/status.json").read_text())["state"] for number in (0, 1)]
    assert sorted(states) == ["finished", "skipped"]
    assert "limits.max_gpu_hours=1e-06 reached" in ran.out


@pytest.mark.serve
def test_hours_of_an_earlier_run_count_and_rescoring_keeps_them(ptb, fake, task):
    fake(die_at=2)
    chosen = ("benchmark=task", task, *MODEL, *VLLM, *agent("Asks"), "hydra.run.dir=one", "backend.usd_per_gpu_hour=9")
    assert ptb(*chosen, "serve.max_restarts=0").code == 1
    before = json.loads(Path("one/result.json").read_text())["server_gpu_hours"]
    assert before > 0
    fake()
    assert ptb("resume", "one", "--retry", "infra_error").code == 0
    after = json.loads(Path("one/result.json").read_text())["server_gpu_hours"]
    assert after > before
    status = json.loads(Path("one/status.json").read_text())
    rescore(read_cell(Path("one").resolve()))
    assert json.loads(Path("one/status.json").read_text())["spent"] == pytest.approx(status["spent"], abs=2e-6)
    assert json.loads(Path("one/result.json").read_text())["server_gpu_hours"] == after


def test_a_cell_without_a_server_has_no_hours_and_no_log(ptb):
    assert ptb("benchmark=hello", "agent=oracle", "hydra.run.dir=one").code == 0
    assert json.loads(Path("one/result.json").read_text())["server_gpu_hours"] is None
    told = ptb("logs", "one", "--serve")
    assert (told.code, "no model server was started for it" in told.err) == (2, True)


# --- A model that its provider hosts ------------------------------------------------------------------

API = ("model=api", "model.id=openai/tiny", "agent.env_vars=[OPENAI_API_KEY]")


@pytest.mark.serve
@pytest.mark.parametrize("kind", ["api", "external"])
def test_terminus_works_with_the_model_under_test(ptb, task, monkeypatch, kind):
    key = "made-up-7Qx4vZr1Lw9sKd3f"
    monkeypatch.setenv("OPENAI_API_KEY", key)
    with model_server.serving(TERMINUS_WRITES_OK) as server:
        external = (*MODEL, "serve=external", f"serve.base_url={server.url}", "serve.max_model_len=8192")
        chosen = (*API, f"agent.base_url={server.url}") if kind == "api" else external
        quiet = ("agent.options.record_terminal_session=false", "hydra.run.dir=one", "retry.wait_sec=0")
        ran = ptb("benchmark=task", task, "agent=terminus-2", *chosen, *quiet)
        assert ran.code == 0, ran.out + ran.err
        models = {asked["model"] for asked in server.log}
    assert models == {"tiny" if kind == "api" else "org/tiny"}
    result = json.loads(Path("one/result.json").read_text())
    assert (result["model"], result["trials"][0]["reward"]) == ("openai/tiny" if kind == "api" else "org/tiny", 1)
    assert "LiteLLM" not in ran.out + ran.err
    assert not [path for path in Path("one").rglob("*") if path.is_file() and key.encode() in path.read_bytes()]


def test_a_hosted_model_is_the_agents_llm():
    own = ("benchmark=hello", "agent=claude-code", "agent.model=null")
    config = typed(composed(*own, "model=api", "model.id=anthropic/claude-x"))
    fields = harbor_job.agent_fields(config)
    assert fields["model_name"] == "anthropic/claude-x"
    assert fields["env"]["ANTHROPIC_API_KEY"] == "${ANTHROPIC_API_KEY}"


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (("agent=terminus-2", "agent.env_vars=[]"), "agent.env_vars: needs the name of a variable"),
        (("agent=terminus-2", "model.id=gpt"), "for example model.id=openai/gpt"),
        (("agent=claude-code",), "the agent would not ask the model under test, openai/tiny"),
        (("agent=oracle",), "agent=oracle asks no LLM"),
        (("agent=terminus-2", "serve=vllm"), "type serve=none, or model=hf"),
        (("agent=terminus-2", "model=none"), "agent=terminus-2 asks an LLM, and none is named"),
        (("agent=terminus-2", "benchmark=addition"), "addition post-trains its model"),
    ],
)
def test_a_hosted_model_that_nobody_would_ask_is_refused(more, said):
    chosen = {text.partition("=")[0]: text for text in ("benchmark=hello", *API, *more)}
    assert any(said in fault for fault in check.problems(composed(*chosen.values()), []))
