"""The server around an evaluation: chosen, started, waited for and always ended, with a stand-in for vLLM on PATH."""

import ast
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from evaluation_kit import FAKE_VLLM, ROOT, Evaluator, example, write_items

from evaluation_code import outcome, serving  # isort: skip  # pyright: ignore[reportMissingImports]
from tests.fakes.model_server import serving as grader_serving

ITEMS = [{"uid": "1", "category": "creative_writing", "prompt": "Write a line.", "baseline": "Old line."}]
WON = [{"match": "<answer_A>\nNew line.", "say": "VERDICT: A>B"}, {"match": "", "say": "VERDICT: B>A"}]
RULES = [{"match": "Write a line.", "say": "New line."}]


class Site:
    """A benchmark with a grader, a model folder, and a `vllm` that does as it is told."""

    def __init__(self, folder: Path, grader_url: str) -> None:
        self.folder = folder
        benchmark = example("arenahardwriting")
        benchmark["grader"]["base_url"] = grader_url
        self.evaluator = Evaluator(folder / "environment", benchmark)
        program = folder / "bin" / "vllm"
        program.parent.mkdir()
        program.write_text(f'#!/bin/sh\nexec {sys.executable} {FAKE_VLLM} "$@"\n')
        program.chmod(0o755)
        self.data = write_items(folder / "items.jsonl", ITEMS)
        self.model = folder / "final_model"
        self.model.mkdir()
        (self.model / "config.json").write_text('{"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"]}')
        self.pids, self.arguments, self.logs = folder / "pids", folder / "arguments.json", folder / "logs"

    def told(self, **how: Any) -> dict[str, Any]:
        files = {"children": str(self.pids), "arguments": str(self.arguments)}
        return {
            "PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}",
            "FAKE_VLLM": json.dumps({"rules": RULES} | files | how),
            "OPENAI_API_KEY": "test",
            "http_proxy": "http://127.0.0.1:9",
        }

    def options(self, *more: object) -> list[object]:
        return ["--model-path", self.model, "--data", self.data, "--log-dir", self.logs, *more]

    def run(self, *arguments: object, **how: Any):
        ran = self.evaluator.run(*self.options(*arguments), **self.told(**how))
        if self.pids.exists():
            assert not [pid for pid in map(int, self.pids.read_text().split()) if alive(pid)]
        return ran


def alive(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


@pytest.fixture
def site(tmp_path):
    with grader_serving(WON) as grader:
        yield Site(tmp_path, grader.url)


def test_a_model_is_served_scored_and_the_server_ended(site):
    metrics = site.run("--gpu-memory-utilization", "0.5").metrics
    assert (metrics["accuracy"], metrics["n"]) == (1.0, 1)
    assert (metrics["details"]["served_by"], metrics["details"]["model_family"]) == ("vllm", "qwen3")
    line = json.loads(site.arguments.read_text())
    port = line[line.index("--port") + 1]
    template = site.evaluator.folder / "templates" / "qwen3.jinja"
    assert line == [
        *["serve", str(site.model), "--served-model-name", "final_model", "--host", "127.0.0.1", "--port", port],
        *["--gpu-memory-utilization", "0.5", "--chat-template", str(template)],
    ]


def test_a_slow_start_is_waited_for_although_its_list_of_models_answers(site):
    metrics = site.run(delay=2).metrics
    assert metrics["details"]["seconds_until_served"] >= 2


def test_a_server_that_does_not_come_up_in_time_is_no_score(site):
    started = time.monotonic()
    ran = site.run("--startup-timeout", "2", delay=60)
    assert ran.code == 1
    assert "did not serve the model in 2 s" in ran.reason
    assert "still loading" in ran.reason
    assert time.monotonic() - started < 30


def test_a_server_that_dies_is_no_score_at_once(site):
    started = time.monotonic()
    ran = site.run(die="torch.OutOfMemoryError: CUDA out of memory.", delay=0.5)
    assert ran.code == 1
    assert "torch.OutOfMemoryError: CUDA out of memory." in ran.reason
    assert time.monotonic() - started < 20


def test_a_model_that_nothing_can_load_is_told_apart(site):
    ran = site.run(die="OSError: Can't load tokenizer for 'final_model'.\nRuntimeError: Engine core failed.")
    assert ran.code == 3
    assert "Can't load tokenizer" in ran.reason


NOT_THE_MODEL = [
    "ValueError: Free memory on device (10.0/79.1 GiB) on startup is less than desired",
    "RuntimeError: Engine core initialization failed. See root cause above.",
    "OSError: [Errno 98] Address already in use",
    "",
]
THE_MODEL = [
    "ValueError: Model architectures ['FooForCausalLM'] are not supported for now. Supported architectures: ...",
    "safetensors_rust.SafetensorError: Error while deserializing header: MetadataIncompleteBuffer",
    "ValueError: Following weights were not initialized from checkpoint: {'lm_head.weight'}",
    "pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig",
    "AssertionError: Attempted to load weight (torch.Size([1, 2])) into parameter (torch.Size([2, 2]))",
]


@pytest.mark.parametrize("last_words", [*NOT_THE_MODEL, *THE_MODEL])
def test_only_what_the_log_blames_on_the_model_is_its_fault(tmp_path, last_words):
    log = tmp_path / "vllm.log"
    log.write_text(f"INFO loading\n{last_words}\n")
    error = serving.death(1, log)
    assert isinstance(error, outcome.InvalidModel if last_words in THE_MODEL else outcome.EvaluationError)
    assert last_words[:60] in str(error)
    assert isinstance(serving.death(-9, log), outcome.EvaluationError)  # killed, whatever it said before


def test_no_vllm_at_all_is_no_score(site):
    ran = site.evaluator.run(*site.options(), OPENAI_API_KEY="test", PATH="/usr/bin:/bin")
    assert ran.code == 1
    assert "No module named" in ran.reason


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_stopped_evaluation_leaves_no_server(site, number):
    rules = [{"match": "", "sleep": 60, "say": "late"}]
    command = [sys.executable, "-I", site.evaluator.folder / "evaluate.py", *site.options()]
    environment = os.environ | site.told(rules=rules)
    process = subprocess.Popen([str(part) for part in command], env=environment, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 30
    while not site.pids.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(2)
    [server] = psutil.Process(process.pid).children()
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    deadline = time.monotonic() + 10
    while alive(server.pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not alive(server.pid)
    if number == signal.SIGTERM:
        assert process.returncode == 1
        assert "stopped by SIGTERM" in errors.splitlines()[-1]
        assert not [pid for pid in map(int, site.pids.read_text().split()) if alive(pid)]
    else:  # what the server itself started is the verifier's to end, or the container's
        for pid in map(int, site.pids.read_text().split()):
            psutil.Process(pid).kill()


def test_a_server_that_is_not_there_is_no_score(site):
    ran = site.evaluator.run(
        *site.options("--base-url", "http://127.0.0.1:9/v1", "--startup-timeout", "1"), OPENAI_API_KEY="test"
    )
    assert ran.code == 1
    assert "refused" in ran.reason


# Families and templates.


@pytest.mark.parametrize(
    ("config", "path", "expected"),
    [
        ({"model_type": "qwen3"}, "final_model", "qwen3"),
        ({"model_type": "smollm3"}, "final_model", "smollm"),
        ({"model_type": "gemma3"}, "final_model", "gemma3"),
        ({"model_type": "gemma3_text"}, "qwen3", "gemma3"),
        ({"architectures": ["Gemma3ForConditionalGeneration"]}, "final_model", "gemma3"),
        ({"model_type": "llama"}, "final_model", None),
        (None, "Qwen/Qwen3-1.7B-Base", "qwen3"),
        (None, "HuggingFaceTB/SmolLM3-3B-Base", "smollm"),
        (None, "google/gemma-3-4b-pt", "gemma3"),
        (None, "final_model", None),
    ],
)
def test_the_family_is_read_from_the_config_or_else_the_name(tmp_path, config, path, expected):
    folder = tmp_path / path
    folder.mkdir(parents=True)
    if config is not None:
        (folder / "config.json").write_text(json.dumps(config))
    assert serving.family(str(folder)) == expected


def test_gemma_with_tools_has_a_template_of_its_own(site):
    templates = site.evaluator.folder / "templates"
    gemma = "google/gemma-3-4b-pt"
    assert serving.chat_template(gemma, templates, tools=True) == templates / "gemma3_tools.jinja"
    assert serving.chat_template(gemma, templates, tools=False) == templates / "gemma3.jinja"
    with pytest.raises(Exception, match="missing"):
        serving.chat_template("Qwen3", templates / "none", tools=False)


def test_tools_need_a_parser(site):
    options = serving.ServerOptions("Qwen3", site.evaluator.folder / "templates", Path("x"), 0.8, 4096, "hermes", 1)
    line = serving.command(options, 1)
    assert line[-5:] == ["--max-model-len", "4096", "--enable-auto-tool-choice", "--tool-call-parser", "hermes"]


# Usage.


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("--limit", "0"),
        ("--max-tokens", "0"),
        ("--gpu-memory-utilization", "2"),
        ("--data", "/none"),
        ("--odd", "1"),
    ],
)
def test_wrong_usage_is_exit_code_2(tmp_path, arguments):
    evaluator = Evaluator(tmp_path / "environment", example("gsm8k"))
    ran = evaluator.run(*([] if not arguments else ["--model-path", "m"]), *arguments)
    assert ran.code == 2
    assert "Traceback" not in ran.err


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"max_token": 1}, "unknown field 'max_token'"),
        ({"grader": {"modell": "x"}}, "unknown field 'modell'"),
        ({"grader": {"workers": 1}}, "field 'model' is missing"),
        ({"grader": "gpt"}, "benchmark.json"),
    ],
)
def test_a_description_with_a_mistake_is_named(tmp_path, change, reason):
    ran = Evaluator(tmp_path / "environment", example("gsm8k") | change).run("--model-path", "m")
    assert ran.code == 2
    assert reason in ran.reason
    assert "benchmark.json" in ran.reason


def test_new_and_max_tokens_are_one_option(tmp_path):
    ran = Evaluator(tmp_path / "environment", example("gsm8k")).run("--help")
    assert "--max-new-tokens" in ran.out


def test_a_refusal_is_not_waited_out():
    with grader_serving([]) as server:
        endpoint = serving.Endpoint(server.url.replace("/v1", "/v2"), "m")
        server.refuse = 404
        started = time.monotonic()
        with pytest.raises(Exception, match="HTTP 404"):
            serving.wait_until_served(endpoint, 30)
    assert time.monotonic() - started < 5


def test_what_runs_in_the_image_is_python_3_10():
    for path in (ROOT / "templates").rglob("*.py"):
        ast.parse(path.read_text(), filename=str(path), feature_version=(3, 10))
