"""The judges' tools: what they answer, and that it stays within bounds."""

from __future__ import annotations

import gzip
import json

import pytest

from ptb_runner.judge import tools
from tests.judge.judge_kit import ITEMS, box, use

COPIED = ITEMS[0]["question"]


def test_files_are_read_in_parts_that_join(tmp_path):
    text = "".join(f"line {number} of the file, with some words in it\n" for number in range(1, 3001))
    toolbox = box(tmp_path, {"workspace/long.txt": text})
    read, line = "", 1
    while True:
        answer = use(toolbox, "read_file", path="workspace/long.txt", start_line=line)
        assert len(answer["content"]) <= tools.MAX_CHARS
        read += answer["content"]
        if answer.get("end_of_file"):
            break
        assert answer["next_line"] > line
        line = answer["next_line"]
    assert read == text
    assert answer["lines_in_file"] == 3000


def test_a_file_of_one_line_is_read_by_bytes(tmp_path):
    toolbox = box(tmp_path, {"workspace/one.json": "x" * 100_000 + "needle" + "y" * 100_000})
    answer = use(toolbox, "read_file", path="workspace/one.json")
    assert len(answer["content"]) < 5000
    assert "more bytes in this line" in answer["content"]
    hit = use(toolbox, "search", pattern="needle")["hits"][0]
    there = use(toolbox, "read_file", path="workspace/one.json", start_byte=hit["byte"])
    assert "needle" in there["content"]
    assert there["next_byte"] == hit["byte"] + tools.MAX_CHARS


def test_answers_are_bounded(tmp_path):
    files = {f"workspace/file{number:04}.txt": "needle\n" * 100 for number in range(500)}
    toolbox = box(tmp_path, files)
    listed = use(toolbox, "list_files", path="workspace")
    assert len(listed["entries"]) == tools.MAX_ENTRIES
    assert "more" in listed
    found = use(toolbox, "search", pattern="needle")
    assert len(found["hits"]) == tools.MAX_HITS
    assert "stopped" in found["note"]


def test_a_pattern_that_would_take_for_ever_does_not(tmp_path):
    toolbox = box(tmp_path, {"workspace/a.txt": "a" * 50_000 + "!"})
    assert use(toolbox, "search", pattern="(a+)+$")["hits"] == []
    assert "RE2" in use(toolbox, "search", pattern="(?=a)")["error"]
    assert "error" in use(toolbox, "search", pattern="a" * 501)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("read_file", "no json"),
        ("read_file", "[]"),
        ("read_file", '{"path": 3}'),
        ("read_file", "{}"),
        ("read_file", '{"path": "trace.txt", "start_line": 0}'),
        ("read_file", '{"path": "trace.txt", "start_line": true}'),
        ("read_file", '{"path": "trace.txt", "start_byte": -1}'),
        ("read_file", '{"path": "trace.txt", "evil": 1}'),
        ("write_file", '{"path": "trace.txt"}'),
        ("search", '{"pattern": "("}'),
    ],
)
def test_calls_without_sense_are_told_why(tmp_path, name, arguments):
    assert json.loads(tools.run(box(tmp_path).tools(), name, arguments)).keys() == {"error"}


def test_what_is_no_text_is_shown_all_the_same(tmp_path):
    toolbox = box(tmp_path, {"workspace/a.bin": b"\0\xff\xfe text", "workspace/\u202eodd\n.txt": "x"})
    assert "text" in use(toolbox, "read_file", path="workspace/a.bin")["content"]
    (tmp_path / "workspace").joinpath(b"raw-\xff.txt".decode(errors="surrogateescape")).write_text("x")
    assert len(use(toolbox, "list_files", path="workspace")["entries"]) == 3


# --- Contamination ------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["jsonl", "txt", "json", "jsonl.gz", "arrow"])
def test_copies_of_test_items_are_found(tmp_path, kind):
    rows = [{"text": "nothing to see"}, {"text": f"Question: {COPIED.upper()} Answer: 7"}]
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    content = {"jsonl.gz": gzip.compress(lines.encode()), "arrow": b"ARROW1\0\0" + lines.encode() + b"\0\1"}
    toolbox = box(tmp_path, {f"workspace/train.{kind}": content.get(kind, lines), "workspace/clean.txt": "clean\n"})
    answer = use(toolbox, "check_contamination", path="workspace")
    assert answer["items_found_in_all"] == 1
    assert answer["files_checked"] == 2
    [hit] = [one for one in answer["files"] if one["items_found"]]
    assert hit["file"] == f"workspace/train.{kind}"
    assert "forty two grey geese" in hit["first"][0]["text"]


def test_large_text_files_are_checked_from_their_beginning(tmp_path):
    toolbox = box(tmp_path, {"workspace/train.jsonl": json.dumps(COPIED) + "\n" + '"filler"\n' * 5000})
    assert use(toolbox, "check_contamination", path="workspace/train.jsonl")["items_found_in_all"] == 1


def test_what_cannot_be_checked_is_not_called_clean(tmp_path):
    toolbox = box(tmp_path, {"workspace/data.jsonl.gz": b"\x1f\x8bdamaged", "workspace/d.parquet": b"PAR1\0\0zip"})
    answer = use(toolbox, "check_contamination", path="workspace")
    notes = {one["file"]: one["note"] for one in answer["files"]}
    assert "cannot be unpacked" in notes["workspace/data.jsonl.gz"]
    assert "not a text file" in notes["workspace/d.parquet"]
    none = tools.Toolbox(toolbox.evidence, None, {})
    assert "not at hand" in use(none, "check_contamination", path="workspace")["error"]


# --- Identity -----------------------------------------------------------------------------------------


IDENTITY = {"model_type": ["gemma3", "gemma3_text"], "hidden_size": 2560, "head_dim": [256, None], "vocab": None}


@pytest.mark.parametrize(
    ("config", "same"),
    [
        ({"model_type": "gemma3_text", "hidden_size": 2560}, True),
        ({"model_type": "gemma3", "text_config": {"hidden_size": 2560, "model_type": "gemma3_text"}}, True),
        ({"model_type": "gemma3", "hidden_size": 2560, "text_config": {"hidden_size": 1152}}, False),
        ({"model_type": "qwen3", "hidden_size": 2560}, False),
        ({"model_type": "gemma3", "hidden_size": 2560, "head_dim": 128}, False),
        ({"model_type": "gemma3"}, False),
    ],
)
def test_the_models_architecture_is_compared(tmp_path, config, same):
    toolbox = box(tmp_path, {"final_model/config.json": json.dumps(config)}, IDENTITY)
    answer = use(toolbox, "check_model_identity")
    assert answer["same_architecture"] is same
    assert [row["field"] for row in answer["fields"]] == ["model_type", "hidden_size", "head_dim"]


@pytest.mark.parametrize("content", ["no json", "[]", None])
def test_no_config_is_no_match(tmp_path, content):
    toolbox = box(tmp_path, {"final_model/config.json": content} if content else {}, IDENTITY)
    assert use(toolbox, "check_model_identity").keys() == {"error"}
