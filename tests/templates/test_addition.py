"""The embedded benchmark: its data, its base model, its evaluator and its reference recipe."""

import json
import shutil
import sys
from pathlib import Path

import make_addition
import pytest
from template_kit import ADDITION, BASE_MODEL, ENVIRONMENT, POST_TRAIN, TEST_SUMS, nano, run

BASE_ACCURACY = 0.027  # of base_model on all of test.txt; also written in conf/


def pairs_of(path: Path) -> list[tuple[int, int]]:
    pairs = []
    for line in path.read_text().splitlines():
        left, total = line.split("=")
        a, b = left.split("+")
        assert line == f"{int(a)}+{int(b)}={int(a) + int(b)}"
        assert total == str(int(a) + int(b))
        pairs.append((int(a), int(b)))
    return pairs


def independent_accuracy(model: Path, data: Path) -> float:
    """One sum at a time, with arithmetic instead of the answers in the file."""
    loaded = nano.load(model)
    pairs = pairs_of(data)
    return sum(nano.generate(loaded, [f"{a}+{b}="]) == [str(a + b)] for a, b in pairs) / len(pairs)


@pytest.fixture(scope="module")
def parts() -> dict[str, list[tuple[int, int]]]:
    return {name: pairs_of(ADDITION / path) for name, path in make_addition.FILES.items()}


def test_all_pairs_are_split_in_three(parts):
    assert {name: len(pairs) for name, pairs in parts.items()} == {"test": 1000, "validation": 1000, "train": 8000}
    together = [pair for pairs in parts.values() for pair in pairs]
    assert sorted(together) == [(a, b) for a in range(100) for b in range(100)]


def test_a_pair_and_its_mirror_are_in_the_same_part(parts):
    for pairs in parts.values():
        assert {(b, a) for a, b in pairs} == set(pairs)


def test_data_is_made_again_byte_for_byte(tmp_path):
    make_addition.write_data(tmp_path)
    for path in make_addition.FILES.values():
        assert (tmp_path / path).read_bytes() == (ADDITION / path).read_bytes()


def test_the_base_model_scores_what_we_say(tmp_path):
    metrics = evaluate(tmp_path, "--model-path", BASE_MODEL, "--data", TEST_SUMS)
    # One sum of leeway: another processor may round a near tie the other way.
    assert metrics["accuracy"] == pytest.approx(BASE_ACCURACY, abs=0.00101)
    assert 0 < metrics["accuracy"] <= 0.10
    assert metrics["details"]["not_a_number"] == 0


def test_the_base_model_is_pretrained():
    base, fresh = nano.load(BASE_MODEL), nano.new_model(nano.Config(), nano.load(BASE_MODEL).tokenizer, 20251)
    assert base.config == fresh.config
    prompts = [f"{a}+{b}=" for a, b in pairs_of(TEST_SUMS)[:50]]
    assert all(answer.isdecimal() for answer in nano.generate(base, prompts))
    assert not all(answer.isdecimal() for answer in nano.generate(fresh, prompts))


# The evaluator.


def evaluate(folder: Path, *arguments: object) -> dict:
    output = folder / "metrics.json"
    done = run(sys.executable, "-I", ENVIRONMENT / "evaluate.py", "--json-output-file", output, *arguments, cwd=folder)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("accuracy ")
    return json.loads(output.read_text())


def test_metrics_are_whole_and_limits_hold(tmp_path):
    metrics = evaluate(tmp_path, "--model-path", BASE_MODEL, "--limit", "150")
    accuracy = metrics["details"]["correct"] / 150
    assert metrics["n"] == 150
    assert metrics["accuracy"] == accuracy
    assert metrics["stderr"] == pytest.approx((accuracy * (1 - accuracy) / 150) ** 0.5)
    assert sum(part["n"] for part in metrics["details"]["by_answer_digits"].values()) == 150
    assert evaluate(tmp_path, "--model-path", BASE_MODEL, "--limit", "-1")["n"] == 1000
    assert [path.name for path in tmp_path.iterdir()] == ["metrics.json"]


def test_default_data_is_validation_then_test(tmp_path):
    for name in ("evaluate.py", "nano.py"):
        shutil.copy(ENVIRONMENT / name, tmp_path)
    command = ("python3", tmp_path / "evaluate.py", "--model-path", BASE_MODEL)
    (tmp_path / "test.txt").write_text("1+1=2\n2+2=4\n")
    assert "on 2 sums" in run(*command).stdout
    (tmp_path / "validation.txt").write_text("1+1=2\n")
    assert "on 1 sums" in run(*command).stdout
    assert not (tmp_path / "__pycache__").exists()


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("--model-path", "m", "--limit", "0"),
        ("--model-path", "m", "--limit", "many"),
        ("--model-path", "m", "--data", "/none"),
    ],
)
def test_wrong_usage_is_exit_code_2(tmp_path, arguments):
    done = run("python3", ENVIRONMENT / "evaluate.py", *arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


def test_a_data_file_that_is_none_is_named_with_its_line(tmp_path):
    (tmp_path / "data.txt").write_text("1+1=2\n1+1\n")
    done = run("python3", ENVIRONMENT / "evaluate.py", "--model-path", BASE_MODEL, "--data", tmp_path / "data.txt")
    assert done.returncode == 2
    assert "line 2" in done.stderr


def test_what_is_no_model_is_exit_code_3_with_one_line(tmp_path):
    done = run("python3", ENVIRONMENT / "evaluate.py", "--model-path", tmp_path, "--json-output-file", tmp_path / "out")
    assert done.returncode == 3
    assert done.stderr == "evaluate.py: config.json: cannot be read (No such file or directory)\n"
    assert not (tmp_path / "out").exists()


# The recipe.


def test_the_reference_recipe_learns_to_add(tmp_path):
    workspace = Path(shutil.copytree(ENVIRONMENT, tmp_path / "workspace"))
    shutil.copy(POST_TRAIN / "environment" / "timer.sh", workspace)
    shutil.copytree(ADDITION / "solution", tmp_path / "solution")
    done = run("bash", tmp_path / "solution" / "solve.sh", cwd=workspace, timeout=240, PTB_SEED="1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "step 100/" in done.stdout
    model = workspace / "final_model"
    metrics = evaluate(tmp_path, "--model-path", model, "--data", TEST_SUMS)
    assert metrics["accuracy"] >= 0.90
    assert metrics["accuracy"] == independent_accuracy(model, TEST_SUMS)
    assert nano.load(model).config == nano.load(BASE_MODEL).config


def test_the_recipe_cannot_see_the_test_set(tmp_path):
    names = {path.name for path in ENVIRONMENT.rglob("*")}
    assert "test.txt" not in names
    seen = set(pairs_of(ENVIRONMENT / "train.txt")) | set(pairs_of(ENVIRONMENT / "validation.txt"))
    assert not seen & set(pairs_of(TEST_SUMS))
    recipe = "".join(path.read_text() for path in (ADDITION / "solution").iterdir() if path.is_file())
    assert "/tests" not in recipe
    assert "test.txt" not in recipe
