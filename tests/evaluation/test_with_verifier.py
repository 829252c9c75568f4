"""Verifier, evaluator and server together, as in the verifier's sandbox: what one reports, the next understands."""

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from evaluation_kit import CHAT, FAKE_VLLM, LAYER, example, write_items

from tests.fakes.model_server import serving
from tests.templates.template_kit import Sandbox, read

ITEMS = [{"uid": "1", "category": "creative_writing", "prompt": "Write a line.", "baseline": "Old line."}]
RULES = [{"match": "Write a line.", "say": "New line."}]
WON = [{"match": "<answer_A>\nNew line.", "say": "VERDICT: A>B"}, {"match": "", "say": "VERDICT: B>A"}]
IDENTITY = {"model_type": "qwen3", "hidden_size": 8}


@pytest.fixture
def site(tmp_path):
    """A hand-over of a small model, and the evaluator in tests/."""
    with serving(WON) as grader:
        sandbox = Sandbox(tmp_path)
        shutil.copytree(LAYER, sandbox.tests, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copytree(CHAT, sandbox.tests / "templates")
        benchmark = example("arenahardwriting") | {"data": {"file": "items.jsonl"}}
        benchmark["grader"]["base_url"] = grader.url
        (sandbox.tests / "benchmark.json").write_text(json.dumps(benchmark))
        write_items(sandbox.tests / "items.jsonl", ITEMS)
        sandbox.settings |= {
            "evaluate": [sys.executable, "-I", str(sandbox.tests / "evaluate.py")],
            "tries": [{"count": 2}, {"count": 3, "args": ["--max-new-tokens", "12288"]}],
            "try_timeout_sec": 60,
            "limit": -1,
            "identity": IDENTITY,
        }
        write_model(sandbox.model)
        sandbox.report(final_model="copied")
        yield sandbox


def write_model(folder: Path) -> None:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(IDENTITY))
    (folder / "tokenizer.json").write_text("{}")
    header = json.dumps({"w": {"dtype": "BF16", "shape": [8], "data_offsets": [0, 16]}}).encode()
    (folder / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(16))


def verify(site: Sandbox, **told: Any) -> dict[str, Any]:
    program = site.root / "bin" / "vllm"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} {FAKE_VLLM} "$@"\n')
    program.chmod(0o755)
    told = {"rules": RULES, "starts": str(site.root / "starts")} | told
    path = f"{program.parent}:{os.environ['PATH']}"
    return site.verify(timeout=120, PATH=path, FAKE_VLLM=json.dumps(told), OPENAI_API_KEY="test")


def test_a_model_is_scored(site):
    verdict = verify(site)
    assert (verdict["outcome"], verdict["reward"], verdict["metrics"]["n"]) == ("scored", 1.0, 1)
    metrics = read(site.logs / "metrics.json") or {}
    assert metrics["details"]["versions"]["openai"]
    assert metrics["details"]["max_tokens"] == 16384
    [run] = (site.logs / "evaluation_1").iterdir()
    assert (run / "vllm.log").exists()


def test_the_ladder_goes_on_where_the_server_finds_no_room(site):
    verdict = verify(site, die="torch.OutOfMemoryError: CUDA out of memory.", deaths=2)
    assert verdict["reward"] == 1.0
    assert [one["exit_code"] for one in verdict["tries"]] == [1, 1, 0]
    assert "out of memory" in verdict["tries"][0]["error"]
    assert verdict["metrics"]["details"]["max_tokens"] == 12288


def test_a_model_that_cannot_be_loaded_is_not_tried_again(site):
    verdict = verify(site, die="ValueError: Following weights were not initialized from checkpoint: {'w'}", deaths=9)
    assert (verdict["outcome"], len(verdict["tries"])) == ("invalid_model", 1)
    assert "not initialized" in verdict["reason"]


def test_answers_that_never_come_are_no_score(site):
    site.settings["tries"] = [{"args": ["--max-retries", "0"], "count": 2}]
    verdict = verify(site, rules=[{"match": "", "status": 500, "message": "CUDA error"}])
    assert (verdict["outcome"], verdict["reward"]) == ("eval_failed", None)
    assert "1 of 1 samples have no score" in verdict["reason"]
    assert "CUDA error" in verdict["reason"]
