"""The verifier: one outcome for everything a hand-off can hold and everything an evaluator can do."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from template_kit import BASE_MODEL, POST_TRAIN, Sandbox, read, run


@pytest.fixture
def sandbox(tmp_path) -> Sandbox:
    return Sandbox(tmp_path)


def change_config(model: Path, **changes: object) -> None:
    path = model / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_a_model_is_scored(sandbox):
    sandbox.hand_over()
    sandbox.settings["limit"] = -1
    verdict = sandbox.verify()
    assert (verdict["outcome"], verdict["reason"]) == ("scored", None)
    assert verdict["metrics"]["n"] == 1000
    assert (
        verdict["reward"] == verdict["metrics"]["accuracy"] == (read(sandbox.logs / "metrics.json") or {})["accuracy"]
    )
    assert (sandbox.logs / "reward.txt").read_text() == repr(verdict["reward"])
    assert [(one["args"], one["exit_code"], one["error"]) for one in verdict["tries"]] == [([], 0, None)]
    assert "accuracy" in (sandbox.logs / "evaluation_1.log").read_text()
    assert verdict["seconds"] > 0


def test_the_hook_and_the_verifier_fit_together(sandbox):
    shutil.copytree(BASE_MODEL, sandbox.workspace / "final_model")
    (sandbox.workspace / "final_model" / "weights_elsewhere").symlink_to("model.safetensors")
    sandbox.collect()
    assert sandbox.verify()["outcome"] == "scored"


def test_test_sh_runs_the_verifier_in_isolated_mode():
    assert "exec python3 -I /tests/verify.py" in (POST_TRAIN / "tests" / "test.sh").read_text()
    assert os.access(POST_TRAIN / "tests" / "test.sh", os.X_OK)


# What the collect hook reports.


def test_no_model(sandbox):
    sandbox.report(final_model="absent")
    assert sandbox.verify()["outcome"] == "no_model"


@pytest.mark.parametrize(
    "content",
    [
        None,
        b"",
        b"[]",
        b"\xff",
        b"{}",
        b'{"final_model": ["copied"]}',
        b'{"final_model": "failed", "error": "disk full"}',
    ],
)
def test_an_incomplete_hand_over_is_an_infrastructure_error(sandbox, content):
    sandbox.hand_over()
    (sandbox.handoff / "collect.json").unlink()
    if content is not None:
        (sandbox.handoff / "collect.json").write_bytes(content)
    verdict = sandbox.verify()
    assert verdict["outcome"] == "infra_error"
    assert "disk full" in verdict["reason"] or b"disk full" not in (content or b"")


def test_a_report_that_is_a_link_or_pipe_is_not_followed(sandbox, tmp_path):
    sandbox.hand_over()
    report = sandbox.handoff / "collect.json"
    report.rename(tmp_path / "elsewhere.json")
    report.symlink_to(tmp_path / "elsewhere.json")
    assert sandbox.verify()["outcome"] == "infra_error"
    report.unlink()
    os.mkfifo(report)
    assert sandbox.verify(timeout=20)["outcome"] == "infra_error"


def test_a_report_of_a_copy_that_is_not_there(sandbox):
    sandbox.report(final_model="copied")
    assert sandbox.verify()["outcome"] == "invalid_model"


# What a model's folder can hold.


def weights(model: Path, header: bytes, data: bytes = b"") -> None:
    (model / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + data)


def tensor(end: int, begin: int = 0, **fields: object) -> bytes:
    return json.dumps({"a": {"dtype": "F32", "data_offsets": [begin, end], **fields}}).encode()


BAD_MODELS = {
    "a link": (lambda m: (m / "x").symlink_to("/etc/passwd"), "x is a link"),
    "a link below": (lambda m: [(m / "d").mkdir(), (m / "d" / "x").symlink_to("/")], "d/x is a link"),
    "config a link": (
        lambda m: [(m / "config.json").rename(m / "c"), (m / "config.json").symlink_to("c")],
        "config.json is a link",
    ),
    "a pipe": (lambda m: os.mkfifo(m / "model-2.safetensors"), "special file"),
    "no config": (lambda m: (m / "config.json").unlink(), "config.json is missing"),
    "config no JSON": (lambda m: (m / "config.json").write_text("{"), "not valid JSON"),
    "config a list": (lambda m: (m / "config.json").write_text("[]"), "not a JSON object"),
    "config deep": (lambda m: (m / "config.json").write_text("[" * 900_000), "not valid JSON"),
    "config a long number": (lambda m: (m / "config.json").write_text("9" * 900_000), "final_model"),
    "config huge": (lambda m: os.truncate(m / "config.json", 2**40), "1099511627776 bytes"),
    "no weights": (lambda m: (m / "model.safetensors").unlink(), "no weights"),
    "an adapter only": (
        lambda m: [
            (m / "model.safetensors").rename(m / "adapter_model.safetensors"),
            (m / "adapter_config.json").touch(),
        ],
        "merge it",
    ),
    "a shard missing": (
        lambda m: (m / "model.safetensors.index.json").write_text('{"weight_map": {"a": "model-1.safetensors"}}'),
        "model-1.safetensors",
    ),
    "a shard elsewhere": (
        lambda m: (m / "model.safetensors.index.json").write_text('{"weight_map": {"a": "../../tests/test.txt"}}'),
        "test.txt",
    ),
    "no tokenizer": (lambda m: (m / "tokenizer.json").unlink(), "no tokenizer"),
    "another width": (lambda m: change_config(m, hidden_size=64), "hidden_size in config.json is 64, expected 48"),
    "another kind": (lambda m: change_config(m, model_type="qwen3"), "model_type in config.json is 'qwen3'"),
    "a field missing": (lambda m: change_config(m, head_dim=None), "head_dim in config.json is None"),
    "true for a number": (lambda m: change_config(m, num_hidden_layers=True), "num_hidden_layers"),
    "a decoy": (lambda m: change_config(m, text_config={"hidden_size": 4096}), "hidden_size in config.json is 4096"),
    "weights cut": (lambda m: os.truncate(m / "model.safetensors", 1000), "model.safetensors"),
    "weights sparse": (lambda m: os.truncate(m / "model.safetensors", 2**40), "more than the"),
    "weights huge in name": (lambda m: (m / "model.safetensors").write_bytes(b"\xff" * 8 + b"{}"), "header's length"),
    "weights no header": (lambda m: weights(m, b"{}}"), "damaged header"),
    "weights a list": (lambda m: weights(m, b"[1, 2]"), "damaged header"),
    "weights too short": (lambda m: weights(m, tensor(8, shape=[2])), "less than the"),
    "weights of another size": (lambda m: weights(m, tensor(8, shape=[3]), bytes(8)), "8 bytes for a tensor"),
    "weights before the start": (lambda m: weights(m, tensor(8, begin=-8, shape=[4])), "no number"),
    "an index of other tensors": (
        lambda m: (m / "model.safetensors.index.json").write_text('{"weight_map": {"odd": "model.safetensors"}}'),
        "model.safetensors lacks odd",
    ),
    # What only the evaluator can see:
    "vocabulary changed": (lambda m: change_config(m, vocab_size=1000), "has shape"),
}


@pytest.mark.parametrize(("change", "reason"), BAD_MODELS.values(), ids=BAD_MODELS.keys())
def test_a_bad_model_is_invalid_and_says_why(sandbox, change, reason):
    change(sandbox.hand_over())
    verdict = sandbox.verify(timeout=20)
    assert verdict["outcome"] == "invalid_model"
    assert reason in verdict["reason"]
    assert "\n" not in verdict["reason"]


def test_the_model_itself_may_not_be_a_link(sandbox, tmp_path):
    sandbox.hand_over().rename(tmp_path / "elsewhere")
    sandbox.model.symlink_to(tmp_path / "elsewhere")
    assert sandbox.verify()["outcome"] == "invalid_model"


def test_a_field_may_have_one_of_several_values_also_nested(sandbox):
    sandbox.settings["identity"] = {"model_type": ["nano", "nano_text"], "num_experts": None, "hidden_size": 48}
    change_config(sandbox.hand_over(), text_config={"model_type": "nano_text", "hidden_size": 48})
    assert sandbox.verify()["outcome"] == "scored"


def test_a_field_with_a_default_may_be_missing_but_not_be_another(sandbox):
    sandbox.settings["identity"] = {"rope_heads": [4, None]}
    model = sandbox.hand_over()
    assert sandbox.verify()["outcome"] == "scored"
    change_config(model, rope_heads=5)
    verdict = sandbox.verify()
    assert verdict["outcome"] == "invalid_model"
    assert "rope_heads in config.json is 5" in verdict["reason"]


def test_true_is_not_one(sandbox):
    sandbox.settings["identity"] = {"copies": 1}
    change_config(sandbox.hand_over(), copies=True)
    verdict = sandbox.verify()
    assert verdict["outcome"] == "invalid_model"
    assert "copies in config.json is True, expected 1" in verdict["reason"]


def test_nothing_handed_over_is_executed(sandbox):
    model = sandbox.hand_over()
    for name in ("nano.py", "numpy.py", "json.py", "sitecustomize.py", "argparse.py"):
        for folder in (model, sandbox.handoff):
            (folder / name).write_text(f"open({str(sandbox.root / 'pwned')!r}, 'w')\nraise SystemExit(0)\n")
    verdict = sandbox.verify(PYTHONPATH=f"{model}:{sandbox.handoff}", PYTHONSTARTUP=str(model / "nano.py"))
    assert verdict["outcome"] == "scored"
    assert not (sandbox.root / "pwned").exists()


# What an evaluator can do.


def test_stale_results_are_removed_first(sandbox):
    sandbox.logs.mkdir()
    for name in ("reward.txt", "reward.json", "metrics.json", "verdict.json", "diagnostics.json"):
        (sandbox.logs / name).write_text('{"reward": 1, "outcome": "scored"}')
    sandbox.report(final_model="absent")
    assert sandbox.verify()["outcome"] == "no_model"
    assert sorted(path.name for path in sandbox.logs.iterdir()) == ["diagnostics.json", "verdict.json"]
    assert read(sandbox.logs / "diagnostics.json") == {"weights": None, "gpus": [], "ended": []}


def test_tries_go_on_until_one_scores(sandbox):
    sandbox.hand_over()
    sandbox.settings["tries"] = [["--max-tokens", "400"], ["--max-tokens", "300"], ["--max-tokens", "200"]]
    sandbox.fake_evaluator("""
if "300" not in arguments:
    sys.exit("out of memory")
output.write_text('{"accuracy": 0.5}')
""")
    verdict = sandbox.verify()
    assert (verdict["outcome"], verdict["reward"]) == ("scored", 0.5)
    assert [(one["args"][1], one["exit_code"]) for one in verdict["tries"]] == [("400", 1), ("300", 0)]
    assert verdict["tries"][0]["error"].endswith("out of memory")
    assert (sandbox.logs / "evaluation_1.stderr.log").read_text() == "out of memory\n"


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("sys.exit('CUDA error')", "exit code 1: CUDA error"),
        ("os.kill(os.getpid(), 9)", "signal 9"),
        ("output.write_text('{\"accuracy\": 1.0}'); sys.exit(1)", "exit code 1"),
        ("pass", "metrics.json is missing"),
        ("print('{\"accuracy\": 1.0}')", "metrics.json is missing"),
    ],
)
def test_a_failing_evaluator_is_told_apart_from_a_score(sandbox, body, reason):
    sandbox.hand_over()
    sandbox.settings["tries"] = [[], []]
    sandbox.fake_evaluator(body)
    verdict = sandbox.verify()
    assert verdict["outcome"] == "eval_failed"
    assert reason in verdict["reason"]
    assert len(verdict["tries"]) == 2


def test_exit_code_3_is_a_bad_model_and_is_not_tried_again(sandbox):
    sandbox.hand_over()
    sandbox.settings["tries"] = [[], []]
    sandbox.fake_evaluator(
        "print('chatter'); print('noise', file=sys.stderr); print('no tensor', file=sys.stderr); sys.exit(3)"
    )
    verdict = sandbox.verify()
    assert (verdict["outcome"], verdict["reason"]) == ("invalid_model", "no tensor")
    assert len(verdict["tries"]) == 1


def test_an_evaluator_at_its_time_limit_dies_with_all_it_started(sandbox):
    sandbox.hand_over()
    sandbox.settings["try_timeout_sec"] = 1.5
    pids = sandbox.root / "pids"
    sandbox.fake_evaluator(f"""
for session in (False, True):  # one child in our process group, one that left it, as servers do
    child = subprocess.Popen(["sleep", "600"], start_new_session=session)
    with open({str(pids)!r}, "a") as file:
        file.write(f"{{child.pid}}\\n")
time.sleep(600)
""")
    started = time.monotonic()
    verdict = sandbox.verify()
    assert time.monotonic() - started < 15
    assert verdict["outcome"] == "eval_failed"
    assert "did not finish in 1.5 s" in verdict["reason"]
    started_pids = [int(pid) for pid in pids.read_text().split()]
    assert len(started_pids) == 2
    assert not any(psutil.pid_exists(pid) for pid in started_pids)


def test_what_a_finished_evaluator_left_running_ends_too(sandbox):
    sandbox.hand_over()
    sandbox.fake_evaluator("""
child = subprocess.Popen(["sleep", "600"], start_new_session=True)
output.write_text('{"accuracy": 0.25, "pid": %d}' % child.pid)
""")
    verdict = sandbox.verify()
    assert verdict["reward"] == 0.25
    assert not psutil.pid_exists(verdict["metrics"]["pid"])


def test_it_runs_in_an_empty_folder_of_its_own_without_python_variables(sandbox):
    sandbox.hand_over()
    sandbox.fake_evaluator("""
import json
odd = [name for name in os.environ if name.startswith("PYTHON")]
facts = {"accuracy": 0, "cwd": os.getcwd(), "files": os.listdir(), "odd": odd, "arguments": arguments}
output.write_text(json.dumps(facts))
""")
    metrics = sandbox.verify(PYTHONPATH="/x")["metrics"]
    assert (metrics["files"], metrics["odd"]) == ([], [])
    assert not metrics["cwd"].startswith(str(sandbox.root))
    assert metrics["arguments"][:4] == ["--model-path", str(sandbox.model), "--limit", "40"]
    assert not Path(metrics["cwd"]).exists()


def test_an_unexpected_error_is_a_verdict_too(sandbox):
    sandbox.hand_over()
    sandbox.settings["evaluate"] = ["/no/such/program"]
    verdict = sandbox.verify()
    assert verdict["outcome"] == "eval_failed"
    assert "/no/such/program" in verdict["reason"]


def test_a_verifier_that_is_stopped_says_so(sandbox):
    sandbox.hand_over()
    sandbox.fake_evaluator("time.sleep(600)")
    (sandbox.tests / "verifier.json").write_text(json.dumps(sandbox.settings))
    process = subprocess.Popen([sys.executable, "-I", sandbox.tests / "verify.py"], stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 20
    while not (sandbox.logs / "evaluation_1.log").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    assert process.wait(20) == 1
    verdict = read(sandbox.logs / "verdict.json")
    assert verdict is not None
    assert (verdict["outcome"], verdict["reward"]) == ("infra_error", None)
    assert "SIGTERM" in verdict["reason"]


def test_the_shell_entry_point_is_valid():
    assert run("bash", "-n", POST_TRAIN / "tests" / "test.sh").returncode == 0


# The ladder of tries.


def test_a_rung_may_have_a_count_arguments_and_a_time_limit(sandbox):
    sandbox.hand_over()
    sandbox.settings["tries"] = [
        {"count": 2, "args": ["--max-tokens", "400"], "timeout_sec": 0.5},
        {"count": 2, "args": ["--max-tokens", "300"]},
        {},
        ["--max-tokens", "100"],
    ]
    sandbox.fake_evaluator("""
if "400" in arguments:
    time.sleep(60)
if "100" not in arguments:
    sys.exit("no")
output.write_text('{"accuracy": 0.5}')
""")
    verdict = sandbox.verify()
    assert verdict["reward"] == 0.5
    assert [one["args"][1:] for one in verdict["tries"]] == [["400"], ["400"], ["300"], ["300"], [], ["100"]]
    assert ["0.5 s" in (one["error"] or "") for one in verdict["tries"]] == [True, True, False, False, False, False]
    assert [one["exit_code"] for one in verdict["tries"]] == [None, None, 1, 1, 1, 0]
    assert len(list(sandbox.logs.glob("evaluation_*.stderr.log"))) == 6


def test_when_no_rung_scores_there_is_no_score(sandbox):
    sandbox.hand_over()
    sandbox.settings["tries"] = [{"count": 4}, {"count": 3, "args": ["-a"]}, {"count": 2, "args": ["-b"]}]
    sandbox.fake_evaluator("output.write_text('{\"accuracy\": 1}'); sys.exit(1)")
    verdict = sandbox.verify()
    assert (verdict["outcome"], verdict["reward"], len(verdict["tries"])) == ("eval_failed", None, 9)


# What holds the GPU.


@pytest.fixture
def nvidia_smi(sandbox):
    """A stand-in that lists the processes whose numbers are in a file, as long as they live; its folder, for PATH."""
    folder = sandbox.root / "bin"
    folder.mkdir()
    script = folder / "nvidia-smi"
    script.write_text(f"""#!{sys.executable}
import pathlib, sys
if "--query-gpu" in sys.argv[1]:
    print("2026/01/01 00:00:00.000, NVIDIA H100, 70000, 81559, 0")
for pid in pathlib.Path({str(sandbox.root / "holders")!r}).read_text().split():
    stat = pathlib.Path(f"/proc/{{pid}}/stat")
    if "--query-compute-apps" in sys.argv[1] and stat.exists() and stat.read_text().split()[2] != "Z":
        print(pid)
""")
    script.chmod(0o755)
    return folder


def test_what_holds_a_gpu_ends_between_tries_but_never_what_runs_the_verifier(sandbox, nvidia_smi):
    sandbox.hand_over()
    holder = subprocess.Popen(["sleep", "600"], start_new_session=True)
    (sandbox.root / "holders").write_text(f"1 {os.getpid()} {holder.pid} 4194300")
    sandbox.settings["tries"] = [{"count": 2}]
    sandbox.fake_evaluator(f"""
if os.path.exists({str(sandbox.root / "again")!r}):
    output.write_text('{{"accuracy": 0.5}}')
else:
    open({str(sandbox.root / "again")!r}, "w").write(str(os.getppid()))
    open({str(sandbox.root / "holders")!r}, "a").write(f" {{os.getppid()}}")  # the verifier itself
    sys.exit("out of memory")
""")
    verdict = sandbox.verify(PATH=f"{nvidia_smi}:{Path(sys.executable).parent}:{os.environ['PATH']}")
    assert holder.wait(10) == -signal.SIGKILL
    assert verdict["reward"] == 0.5
    told = read(sandbox.logs / "diagnostics.json") or {}
    assert told["ended"] == [{"pid": holder.pid, "command": "sleep 600", "error": None}]
    assert len(told["gpus"]) == 2
    assert told["weights"] == {"files": 1, "bytes": (BASE_MODEL / "model.safetensors").stat().st_size, "tensors": 16}


def test_a_model_that_scores_at_once_ends_nobody(sandbox, nvidia_smi):
    sandbox.hand_over()
    holder = subprocess.Popen(["sleep", "600"], start_new_session=True)
    (sandbox.root / "holders").write_text(str(holder.pid))
    assert sandbox.verify(PATH=f"{nvidia_smi}:{os.environ['PATH']}")["outcome"] == "scored"
    assert holder.poll() is None
    holder.kill()
    holder.wait()


# Its exit code.


@pytest.mark.parametrize(("scores", "code"), [(True, "0"), (False, "1")])
def test_the_exit_code_survives_a_reader_that_goes_away(sandbox, scores, code):
    sandbox.hand_over()
    sandbox.fake_evaluator("output.write_text('{\"accuracy\": 0.5}')" if scores else "sys.exit(7)")
    (sandbox.tests / "verifier.json").write_text(json.dumps(sandbox.settings))
    command = f"({sys.executable} -I {sandbox.tests}/verify.py; echo $? > {sandbox.root}/code) | true"
    run("bash", "-c", command)
    assert (sandbox.root / "code").read_text().strip() == code
    assert (read(sandbox.logs / "verdict.json") or {})["outcome"] == ("scored" if scores else "eval_failed")
