"""The check against contamination: what it finds, what it must not find, and that it streams."""

import json
import sys
from pathlib import Path

import pytest
from template_kit import TEMPLATES, run

CHECK = TEMPLATES / "decontamination" / "environment" / "contamination_check.py"

FIRST = "A farmer keeps twelve brown hens and each of them lays five eggs in every single week of the year."
SECOND = "Seven ships leave the harbour at noon while nine others are still waiting for the tide to come in again."
SHORT = "Which river crosses seven old towns?"
ITEMS = [{"question": FIRST, "answer": "60"}, {"id": "ships", "question": SECOND, "answer": ""}, {"question": SHORT}]
CLEAN = "The weather was fine, and nobody thought of hens, ships or rivers for the whole of that long summer day."

# Runs a command and says last the most memory (KiB) that it had; a process that forks it would count its own.
PEAK = """
import resource, subprocess, sys
subprocess.run(sys.argv[1:])
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss, file=sys.stderr)
"""


class Check:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.test_data = folder / "test_data.json"
        self.test_data.write_text(json.dumps(ITEMS))

    def file(self, name: str, content: str) -> Path:
        path = self.folder / name
        path.write_text(content)
        return path

    def jsonl(self, *examples: object) -> Path:
        return self.file("train.jsonl", "".join(json.dumps(one) + "\n" for one in examples))

    def command(self, *arguments: object) -> list[object]:
        return [sys.executable, "-I", CHECK, "--test-data", self.test_data, "--tokens", "words", *arguments]

    def run(self, *arguments: object):
        done = run(*self.command(*arguments), cwd=self.folder)
        return done.returncode, [json.loads(line) for line in done.stdout.splitlines()], done.stderr


@pytest.fixture
def check(tmp_path):
    return Check(tmp_path)


def test_clean_data_is_clean(check):
    assert check.run(check.jsonl({"text": CLEAN}, {"text": FIRST[:40]}))[:2] == (0, [])


def test_every_example_that_overlaps_is_named_with_its_item(check):
    path = check.jsonl({"text": CLEAN}, {"messages": [{"content": f"Q: {FIRST.upper()}!"}]}, [f"So: {SECOND[:75]}"])
    code, hits, errors = check.run(path)
    assert code == 1
    first, second = hits
    assert (first["file"], first["line"], first["item"], first["overlap"]) == (str(path), 2, 0, round(8 / 9, 4))
    assert first["text"] == "a farmer keeps twelve brown hens and each of them lays five eggs"
    assert (second["line"], second["item"]) == (3, "ships")
    assert 0 < second["overlap"] < 0.4
    assert "2 hits in 1 files" in errors


def test_thirteen_words_in_common_are_found_and_twelve_are_not(check):
    some = FIRST.split()
    assert check.run(check.jsonl({"text": " ".join(some[2:14])}))[0] == 0
    assert check.run(check.jsonl({"text": " ".join(some[2:15])}))[0] == 1
    assert check.run("-n", "5", check.jsonl({"text": " ".join(some[2:7])}))[0] == 1


def test_case_punctuation_and_spacing_do_not_matter(check):
    assert check.run(check.jsonl({"text": FIRST.lower().replace(" ", ",\n  ")}))[0] == 1


def test_a_short_item_is_looked_for_as_a_whole(check):
    code, [hit], _ = check.run(check.jsonl({"text": f"Tell me: {SHORT} Which?"}))
    assert (code, hit["item"], hit["overlap"]) == (1, 2, 1.0)
    assert check.run(check.jsonl({"text": "Which river crosses seven towns?"}))[0] == 0


def test_text_may_go_on_over_the_end_of_a_line(check):
    path = check.file("notes.txt", f"{CLEAN}\n{FIRST[:50]}\n{FIRST[50:]}\n{CLEAN}\n")
    code, hits, _ = check.run(path)
    assert code == 1
    assert {(hit["line"], hit["item"]) for hit in hits} == {(3, 0)}


def test_examples_of_jsonl_do_not_run_into_each_other(check):
    assert check.run(check.jsonl({"text": FIRST[:50]}, {"text": FIRST[50:]}))[0] == 0


def test_json_and_broken_lines_are_read_as_text(check):
    path = check.file("data.json", json.dumps([{"text": f"x\n{FIRST}"}], indent=1))
    assert check.run(path)[0] == 1
    assert check.run(check.file("broken.jsonl", f'{{"text": "{SECOND}\n'))[0] == 1


def test_folders_are_searched_but_not_the_test_data_itself(check):
    check.file("a.txt", CLEAN)
    (check.folder / "model.bin").write_bytes(b"\0" + FIRST.encode())
    assert check.run(check.folder)[0] == 0
    (check.folder / "deep").mkdir()
    check.file("deep/b.md", FIRST)
    code, hits, errors = check.run(check.folder)
    assert code == 1
    assert {Path(hit["file"]).name for hit in hits} == {"b.md"}
    assert "in 2 files" in errors


def test_a_part_of_an_item_can_be_demanded(check):
    path = check.jsonl({"text": " ".join(FIRST.split()[2:15])})
    assert check.run("--min-overlap", "0.5", path)[:2] == (0, [])


def test_the_output_is_one_json_object_a_line_also_for_odd_names_and_text(check):
    path = check.file('we"ird\n.jsonl', json.dumps({"text": FIRST + " \u2028 ü"}) + "\n")
    code, [hit], _ = check.run(path)
    assert (code, hit["file"]) == (1, str(path))


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ((), "required"),
        (("missing.jsonl",), "missing.jsonl: no such file"),
        (("-n", "0", "x"), "-n must be"),
        (("model.parquet",), "not a text file"),
        (("--test-data", "none.json", "."), "none.json"),
        (("--test-data", "odd.json", "."), "odd.json"),
        (("--test-data", "empty.json", "."), "no test items"),
    ],
)
def test_wrong_usage_is_exit_code_2(check, arguments, reason):
    (check.folder / "model.parquet").write_bytes(b"PAR1\0\0")
    check.file("odd.json", '{"a": 1}')
    check.file("empty.json", "[]")
    code, hits, errors = check.run(*arguments)
    assert (code, hits) == (2, [])
    assert reason in errors
    assert "Traceback" not in errors


def test_memory_does_not_grow_with_the_data(check):
    path = check.folder / "big.jsonl"
    line = json.dumps({"text": f"{CLEAN} " * 50}) + "\n"
    with path.open("w") as file:
        for _ in range(300):
            file.write(line)
        file.write(json.dumps("word " * 2_000_000 + FIRST) + "\n")  # one line of 10 MB
    done = run(sys.executable, "-c", PEAK, *check.command(path), cwd=check.folder)
    assert json.loads(done.stdout)["line"] == 301
    assert int(done.stderr.split()[-1]) < 200_000


def test_tokens_are_counted_where_tiktoken_is(check, tmp_path):
    """With a stand-in for tiktoken: its vocabulary is not at hand on every machine."""
    module = tmp_path / "lib" / "tiktoken.py"
    module.parent.mkdir()
    module.write_text("""
class Letters:
    def encode_ordinary(self, text):
        return [ord(one) for one in text]
    def decode(self, tokens):
        return "".join(map(chr, tokens))
def get_encoding(name):
    assert name == "cl100k_base"
    return Letters()
""")
    path = check.jsonl({"text": "a FARMER keeps"})
    command = [sys.executable, CHECK, "--test-data", check.test_data, path]
    done = run(*command, PYTHONPATH=str(module.parent))
    [hit] = [json.loads(line) for line in done.stdout.splitlines()]
    assert (done.returncode, hit["item"], hit["text"]) == (1, 0, "a farmer kee")
    assert "runs of 13 tiktoken" in done.stderr
    module.write_text("raise ImportError('no')")
    assert run(*command, PYTHONPATH=str(module.parent)).returncode == 0
    assert run(*command, "--tokens", "tiktoken", PYTHONPATH=str(module.parent)).returncode == 2
