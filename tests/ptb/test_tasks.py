"""The 32 tasks of PostTrainBench: what they hold, and that they say the same everywhere."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import time
import tomllib
import warnings
from pathlib import Path

import pytest

from ptb_runner.budget import item_limit
from ptb_runner.config import typed
from ptb_runner.doctor import compose
from ptb_runner.paths import TEMPLATES
from ptb_runner.render import render
from tests.test_cell import composed

BENCHMARKS = ["aime2025", "aime2026", "arenahardwriting", "bfcl", "gpqamain", "gsm8k", "healthbench", "humaneval"]
MODELS = ["qwen3-1.7b", "qwen3-4b", "smollm3-3b", "gemma3-4b"]
GRADED = ("arenahardwriting", "healthbench")


@pytest.fixture(autouse=True)
def empty_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("PTB_CACHE", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def tasks(tmp_path_factory) -> dict[tuple[str, str], Path]:
    folder = tmp_path_factory.mktemp("tasks")
    chosen = {(b, m): typed(composed(f"benchmark={b}", f"model={m}")) for b in BENCHMARKS for m in MODELS}
    for (benchmark, model), config in chosen.items():
        render(config, folder / f"{benchmark}-{model}")
    return {key: folder / "-".join(key) for key in chosen}


def toml(task: Path) -> dict:
    return tomllib.loads((task / "task.toml").read_text())


def test_all_32_are_tasks_that_harbor_takes(tasks):
    from harbor.lint.models import DEFAULT_RULES
    from harbor.lint.task import lint_task
    from harbor.models.task.task import Task

    assert len(tasks) == 32
    for task in tasks.values():
        assert [str(one) for one in lint_task(task, selected_rules=DEFAULT_RULES)] == []
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert Task(task).instruction.strip()


def test_both_sandboxes_have_the_same_machine(tasks):
    for task in tasks.values():
        found = toml(task)
        assert found["verifier"]["environment_mode"] == "separate"
        for machine in (found["environment"], found["verifier"]["environment"]):
            assert (machine["cpus"], machine["memory_mb"], machine["storage_mb"]) == (16, 131072, 409600)
            assert (machine["gpus"], machine["gpu_types"], machine["network_mode"]) == (1, ["H100"], "public")
        assert "/timer_start" in found["environment"]["healthcheck"]["command"]
        assert "collect.py" in found["verifier"]["collect"][0]["command"]


LADDERS = {
    "gsm8k": (4000, "--max-tokens", ("3000", "2000")),
    "humaneval": (4000, "--max-tokens", ("3000", "2000")),
    "arenahardwriting": (16384, "--max-new-tokens", ("12288", "8192")),
    "healthbench": (16384, "--max-new-tokens", ("12288", "8192")),
}
QUICK = {"gsm8k": 150, "humaneval": 150, "gpqamain": 50, "arenahardwriting": 32, "healthbench": 32}
SERVING = {"gsm8k": (2, 0.3), "humaneval": (1, 0.3)}


@pytest.mark.parametrize("benchmark", BENCHMARKS)
def test_the_evaluation_is_that_of_the_table(tasks, benchmark):
    task = tasks[benchmark, "qwen3-1.7b"]
    settings = json.loads((task / "tests/verifier.json").read_text())
    first, flag, fewer = LADDERS.get(benchmark, (16000, "--max-tokens", ("12000", "8000")))
    assert settings["tries"] == [[]] * 4 + [[flag, fewer[0]]] * 3 + [[flag, fewer[1]]] * 2
    assert settings["limit"] == -1
    told = json.loads((task / "environment/benchmark.json").read_text())
    assert (told["id"], told["max_tokens"], told["limit"]) == (benchmark, first, QUICK.get(benchmark, -1))
    if benchmark not in GRADED:
        assert (told["max_connections"], told["gpu_memory_utilization"]) == SERVING.get(benchmark, (6, 0.8))
    assert (told["grader"] is not None) == (benchmark in GRADED)
    assert (told["tool_parser"] == "hermes") == (benchmark == "bfcl")


def test_evaluate_py_reads_every_benchmark_json(tasks, monkeypatch):
    import sys

    folder = str(TEMPLATES / "evaluation" / "environment")
    monkeypatch.syspath_prepend(folder)
    for name in [name for name in sys.modules if name.partition(".")[0] == "evaluation_code"]:
        monkeypatch.delitem(sys.modules, name)
    from evaluation_code.benchmark import Benchmark  # pyright: ignore[reportMissingImports]

    for (benchmark, _), task in tasks.items():
        for side in ("environment", "tests"):
            assert Benchmark.read(task / side / "benchmark.json").id == benchmark


@pytest.mark.parametrize("benchmark", BENCHMARKS)
def test_the_prompt_says_what_an_agent_must_know(tasks, benchmark):
    for model in MODELS:
        text = " ".join((tasks[benchmark, model] / "instruction.md").read_text().split())
        config = compose([f"benchmark={benchmark}", f"model={model}"])
        for words in (
            config.benchmark.title,
            config.model.hub_id or "-",
            "final_model/",
            "**Time**: 10 hours",
            "bash timer.sh",
            "1 GPU (H100)",
            "`--limit N`",
            "Nobody will answer questions",
            "Do not train on the benchmark's test data",
            "`templates/`",
            "Work in this folder only",
            "packages as they were",
            "Do not use an API key to call a hosted language model",
        ):
            assert words in text, words
        assert ("one exception" in text) == (benchmark in GRADED)
        assert "contamination_check" not in text
        assert "last message" not in text


def test_only_claude_is_told_to_finish_its_processes(tmp_path):
    for agent, told in (("claude-code", True), ("codex", False), ("gemini-cli", False), ("glm-5", False)):
        render(compose(["benchmark=gsm8k", f"agent={agent}"]), tmp_path / agent)
        assert ("last message" in (tmp_path / agent / "instruction.md").read_text()) == told


def test_keys_that_evaluation_needs_reach_both_sandboxes_by_name(tasks):
    for (benchmark, model), task in tasks.items():
        both = {"OPENAI_API_KEY"} if benchmark in GRADED else {"HF_TOKEN"} if benchmark == "gpqamain" else set()
        found = toml(task)
        # A gated model is fetched by the agent alone.
        agents = both | ({"HF_TOKEN"} if model == "gemma3-4b" else set())
        for names, env in ((agents, found["environment"]["env"]), (both, found["verifier"].get("env", {}))):
            assert {key: value for key, value in env.items() if key != "PTB_SEED"} == {n: f"${{{n}}}" for n in names}


# --- Images -------------------------------------------------------------------------------------------


def test_both_images_begin_with_the_same_pinned_steps(tasks):
    task = tasks["gsm8k", "qwen3-1.7b"]
    agents, verifiers = ((task / side / "Dockerfile").read_text() for side in ("environment", "tests"))
    begin = agents[agents.index("FROM") : agents.index("COPY image/entrypoint.sh")]
    assert begin in verifiers
    for words in (
        "FROM nvidia/cuda:12.9.1-cudnn-devel-ubuntu22.04",
        "--torch-backend=cu128 vllm==0.11.0",
        "flash-attn==2.8.3",
        "@anthropic-ai/claude-code@2.1.332 @openai/codex@0.171.0 @google/gemini-cli@0.61.0 opencode-ai@1.18.33",
    ):
        assert words in begin
    packages = (task / "environment/image/requirements.txt").read_text().split("\n")
    for line in ("transformers==4.57.3", "inspect-ai==0.3.150", "openai==2.17.0", "trl==0.27.2", "datasets==4.5.0"):
        assert line in packages
    assert re.search(r"inspect_evals @ git\+\S+@06001a83[0-9a-f]{32}$", "\n".join(packages).strip())
    assert "contamination" not in agents
    for name in ("budget_sec", "collect.py", "system_monitor.py"):
        assert (task / "environment/image/tools" / name).read_bytes() == (task / "tools" / name).read_bytes()


def test_clis_follow_the_newest_or_a_version_of_ones_own(tmp_path):
    def line(*overrides: str) -> str:
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        render(compose(["benchmark=gsm8k", *overrides]), folder)
        return next(text for text in (folder / "environment/Dockerfile").read_text().splitlines() if "npm inst" in text)

    assert line("pins=latest").count("@latest") == 4
    assert "@openai/codex@9.9.9" in line("agent=codex", "agent.version=9.9.9")
    found = line("agent=codex", "agent.version=latest")
    assert "@openai/codex@latest" in found
    assert found.count("@latest") == 1


def test_the_entrypoint_shows_logs_that_appear_and_ends_at_once(tmp_path):
    (tmp_path / "agent").mkdir()
    (tmp_path / "verifier").mkdir()
    script = TEMPLATES / "gpu/environment/image/entrypoint.sh"
    environment = {"PATH": "/usr/local/bin:/usr/bin:/bin", "PTB_LOGS": str(tmp_path), "PTB_LOOK_EVERY": "0.05"}
    with subprocess.Popen(["bash", script], stdout=subprocess.PIPE, text=True, env=environment) as process:
        (tmp_path / "agent" / "claude-code.txt").write_text("one\n")
        (tmp_path / "verifier" / "test-stdout.txt").write_text("two\n")
        assert process.stdout
        seen = {process.stdout.readline().strip() for _ in range(2)}
        started = time.monotonic()
        process.send_signal(signal.SIGTERM)
        process.wait(10)
        assert time.monotonic() - started < 3
    assert seen == {"agent/claude-code.txt: one", "verifier/test-stdout.txt: two"}


def test_the_entrypoint_runs_a_command_and_ends_as_it_does(tmp_path):
    (tmp_path / "agent").mkdir()
    script = TEMPLATES / "gpu/environment/image/entrypoint.sh"
    environment = {"PATH": "/usr/local/bin:/usr/bin:/bin", "PTB_LOGS": str(tmp_path), "PTB_LOOK_EVERY": "0.05"}
    command = ["bash", script, "bash", "-c", f"echo out; echo log > {tmp_path}/agent/a.txt; sleep 0.5; exit 7"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=20)
    assert done.returncode == 7
    assert {"out", "agent/a.txt: log"} <= set(done.stdout.split("\n"))


# --- Budget -------------------------------------------------------------------------------------------


def test_a_smoke_budget_changes_prompt_timer_limits_and_metadata_together(tmp_path):
    config = compose(["benchmark=gsm8k", "budget=smoke"])
    render(config, tmp_path / "task")
    found = toml(tmp_path / "task")
    assert found["agent"]["timeout_sec"] == 900
    assert found["metadata"]["budget"] == "smoke"
    assert (found["metadata"]["agent_hours"], found["metadata"]["comparable"]) == (0.25, False)
    assert "**Time**: 15 minutes." in (tmp_path / "task/instruction.md").read_text()
    assert (tmp_path / "task/tools/budget_sec").read_text().strip() == "900"
    assert json.loads((tmp_path / "task/tests/verifier.json").read_text())["limit"] == item_limit(config) == 8


def test_the_agents_own_limit_wins_over_the_budget(tmp_path):
    render(compose(["benchmark=gsm8k", "budget.hours=5", "agent.timeout_hours=2"]), tmp_path / "task")
    assert toml(tmp_path / "task")["agent"]["timeout_sec"] == 7200
    render(compose(["benchmark=gsm8k", "budget.hours=5"]), tmp_path / "other")
    assert toml(tmp_path / "other")["agent"]["timeout_sec"] == 18000


def test_a_smoke_run_is_not_comparable_and_says_why(ptb):
    ran = ptb("benchmark=addition", "budget=smoke", "agent=oracle", "hydra.run.dir=run")
    assert ran.code == 0, ran.err
    found = json.loads(Path("run/result.json").read_text())["provenance"]
    assert found["comparable"] is False
    assert any("0.25 h" in why for why in found["not_comparable_because"])
    assert any("8 items" in why for why in found["not_comparable_because"])


# --- Facts --------------------------------------------------------------------------------------------


def test_the_published_figures_come_out():
    """Weighted and times 100: base zero-shot 7.5276, few-shot 18.0776, official instruct models 51.1359."""
    sums = dict.fromkeys(("zero_shot", "few_shot", "instruct"), 0.0)
    weights = 0.0
    for name in BENCHMARKS:
        benchmark = compose([f"benchmark={name}"]).benchmark
        if benchmark.weight is None:
            continue
        weights += benchmark.weight
        for kind in sums:
            scores = getattr(benchmark, kind)
            assert set(scores) == set(MODELS)
            sums[kind] += 100 * benchmark.weight * sum(scores.values()) / len(scores)
    assert weights == pytest.approx(1)
    assert sums == pytest.approx({"zero_shot": 7.5276, "few_shot": 18.0776, "instruct": 51.1359}, abs=1e-4)


def test_judges_are_told_what_is_allowed():
    allowed = {name: " ".join(compose([f"benchmark={name}"]).benchmark.allowed_data) for name in BENCHMARKS}
    assert "MetaMathQA" in allowed["gsm8k"]
    assert "train" in allowed["gsm8k"]
    assert "AIME_2024" in allowed["aime2025"]
    assert "mbpp" in allowed["humaneval"]
    for name in BENCHMARKS:
        assert compose([f"benchmark={name}"]).benchmark.disallowed_data


# --- The command --------------------------------------------------------------------------------------


def test_a_dry_run_renders_and_says_that_this_backend_cannot_run_it(ptb):
    ran = ptb("benchmark=gsm8k", "model=qwen3-1.7b", "dry_run=true", "hydra.run.dir=run")
    assert ran.code == 1
    assert "not ready: backend=bubblewrap has no GPU" in ran.out
    assert "Traceback" not in ran.err
    assert Path("run/task/task.toml").is_file()


def test_without_a_dry_run_it_is_refused_and_nothing_is_left(ptb):
    ran = ptb("benchmark=gsm8k", "model=qwen3-1.7b", "hydra.run.dir=run")
    assert ran.code == 2
    assert "bubblewrap has no GPU" in ran.err
    assert not Path("run").exists()


def test_a_planned_cell_is_not_resumed_where_it_cannot_run(ptb):
    ptb("benchmark=gsm8k", "dry_run=true", "hydra.run.dir=run")
    ran = ptb("resume", "run")
    assert ran.code == 2
    assert "bubblewrap has no GPU" in ran.err


def test_a_sweep_of_all_32_is_planned(ptb):
    ran = ptb("-m", f"benchmark={','.join(BENCHMARKS)}", f"model={','.join(MODELS)}", "dry_run=true")
    assert ran.code == 1, ran.err
    assert "32 cells" in ran.out
    assert "not ready: backend=bubblewrap has no GPU" in ran.out
