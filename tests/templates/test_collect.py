"""The collect hook: what it copies, what it leaves out and says so, and that it only reads the workspace."""

import contextlib
import json
import os
import resource
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from template_kit import COLLECT, Sandbox, fingerprint, read

GIB = 2**30


@pytest.fixture
def sandbox(tmp_path) -> Sandbox:
    return Sandbox(tmp_path)


def make_model(sandbox: Sandbox) -> Path:
    model = sandbox.workspace / "final_model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    (model / "model.safetensors").write_bytes(b"weights" * 1000)
    return model


def reasons(skipped: list[dict]) -> dict[str, str]:
    return {entry["path"]: entry["reason"] for entry in skipped}


def allocated(folder: Path) -> int:
    return sum(path.lstat().st_blocks * 512 for path in folder.rglob("*"))


# The model.


def test_a_model_is_copied_and_its_small_json_kept(sandbox):
    model = make_model(sandbox)
    (model / "deep").mkdir()
    (model / "deep" / "tokenizer.json").write_text("[]")
    (model / "big.json").write_text(json.dumps("x" * 2**20))
    done, report = sandbox.collect()
    assert done.returncode == 0, done.stderr
    assert report is not None
    assert report | {"seconds": 0} == {
        "final_model": "copied",
        "files": 4,
        "bytes": 7000 + 2 + 2 + 2**20 + 2,
        "skipped": [],
        "skipped_count": 0,
        "error": None,
        "snapshot_error": None,
        "seconds": 0,
    }
    assert (sandbox.model / "model.safetensors").read_bytes() == b"weights" * 1000
    assert (sandbox.model / "deep" / "tokenizer.json").read_text() == "[]"
    assert [path.name for path in (sandbox.artifacts / "final_model_config").iterdir()] == ["config.json"]
    assert sorted(path.name for path in sandbox.handoff.iterdir()) == ["collect.json", "final_model"]


def test_no_model_is_absent_and_what_was_planted_is_gone(sandbox):
    sandbox.hand_over()
    done, report = sandbox.collect()
    assert done.returncode == 0
    assert report is not None
    assert (report["final_model"], report["error"]) == ("absent", None)
    assert not sandbox.model.exists()


def test_a_file_as_model_is_absent_with_a_note(sandbox):
    (sandbox.workspace / "final_model").write_text("no folder")
    _, report = sandbox.collect()
    assert report is not None
    assert (report["final_model"], report["error"]) == ("absent", "final_model is not a folder")


def test_links_become_what_they_lead_to(sandbox, tmp_path):
    blobs = tmp_path / "cache" / "blobs"
    blobs.mkdir(parents=True)
    (blobs / "abc").write_bytes(b"shard")
    (blobs / "folder").mkdir()
    (blobs / "folder" / "inner").write_text("inner")
    model = make_model(sandbox)
    (model / "shard").symlink_to(blobs / "abc")
    (model / "same").symlink_to("shard")
    (model / "folder").symlink_to(blobs / "folder")
    _, report = sandbox.collect()
    assert report is not None
    assert report["files"] == 5
    for name, content in {"shard": "shard", "same": "shard", "folder/inner": "inner"}.items():
        assert not (sandbox.model / name).is_symlink()
        assert (sandbox.model / name).read_text() == content
    assert not (sandbox.model / "folder").is_symlink()


def test_the_whole_model_may_be_a_link(sandbox):
    best = make_model(sandbox).rename(sandbox.workspace / "best")
    (sandbox.workspace / "final_model").symlink_to("best")
    _, report = sandbox.collect()
    assert report is not None
    assert report["files"] == 2
    assert (sandbox.model / "config.json").read_bytes() == (best / "config.json").read_bytes()


def test_what_cannot_be_read_costs_only_itself(sandbox):
    """An agent must not be able to turn its model into our failure."""
    model = make_model(sandbox)
    (model / "usr").symlink_to("/usr/share")
    (model / "etc").symlink_to("/etc")
    if os.geteuid() != 0:
        (model / "closed").mkdir(mode=0)
        (model / "secret.bin").write_bytes(b"x")
        (model / "secret.bin").chmod(0)
    (model / "mem").symlink_to("/proc/self/mem")
    done, report = sandbox.collect()
    assert done.returncode == 0, done.stdout
    assert report is not None
    assert report["final_model"] == "copied"
    assert sorted(path.name for path in sandbox.model.iterdir()) == ["config.json", "model.safetensors"]
    assert {"usr", "etc"} <= reasons(report["skipped"]).keys()
    assert "of the system" in reasons(report["skipped"])["usr"]


def test_too_many_files_are_the_models_fault(sandbox):
    model = make_model(sandbox)
    collect = COLLECT.read_text().replace("MAX_MODEL_FILES = 100_000", "MAX_MODEL_FILES = 3")
    changed = sandbox.workspace.parent / "collect.py"
    changed.write_text(collect)
    for number in range(5):
        (model / f"{number}.bin").write_text("x")
    folders = [f"--{name}={getattr(sandbox, name)}" for name in ("workspace", "handoff", "artifacts")]
    done = subprocess.run([sys.executable, "-I", changed, *folders], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    report = json.loads((sandbox.handoff / "collect.json").read_text())
    assert (report["final_model"], report["error"]) == ("refused", "final_model has more than 3 files")
    assert sorted(path.name for path in sandbox.handoff.iterdir()) == ["collect.json"]


def test_loops_end_and_special_files_are_not_opened(sandbox):
    model = make_model(sandbox)
    (model / "loop").symlink_to("loop")
    (model / "here").symlink_to(".")
    (model / "up").symlink_to("..")
    (model / "root").symlink_to("/")
    (model / "handoff").symlink_to(sandbox.handoff)
    (model / "nothing").symlink_to("/no/such/place")
    (model / "zero").symlink_to("/dev/zero")
    (model / "kernel").symlink_to("/proc/version")
    (model / "processes").symlink_to("/proc")
    (model / "real").mkdir()
    (model / "a_real").symlink_to("real")
    os.mkfifo(model / "pipe")
    (model / "to_pipe").symlink_to("pipe")
    listener = socket.socket(socket.AF_UNIX)
    with contextlib.chdir(model):  # a socket's path must be short
        listener.bind("socket")
    done, report = sandbox.collect(timeout=20)
    listener.close()
    assert done.returncode == 0, done.stderr
    assert report is not None
    assert reasons(report["skipped"]) == {
        "loop": "link loop",
        "here": "folder already copied, or a link loop",
        "up": "folder already copied, or a link loop",
        "root": "folder already copied, or a link loop",
        "handoff": "folder already copied, or a link loop",
        "a_real": "folder already copied, or a link loop",
        "nothing": "link to nothing",
        "zero": "device",
        "kernel": "belongs to the system, not to the model",
        "processes": "belongs to the system, not to the model",
        "pipe": "named pipe",
        "to_pipe": "named pipe",
        "socket": "socket",
    }
    assert (sandbox.model / "real").is_dir()
    assert report["files"] == 2


def test_crossed_folder_links_do_not_multiply(sandbox, tmp_path):
    model = make_model(sandbox)
    levels = [tmp_path / f"level{number}" for number in range(30)]
    for level in levels:
        level.mkdir()
    for above, below in zip([model, *levels], levels, strict=False):
        (above / "left").symlink_to(below)
        (above / "right").symlink_to(below)
    done, report = sandbox.collect(timeout=20)
    assert done.returncode == 0
    assert report is not None
    assert len(report["skipped"]) == 30


def test_planted_links_in_the_handoff_are_not_written_through(sandbox, tmp_path):
    make_model(sandbox)
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "precious").write_text("kept")
    sandbox.model.symlink_to(victim)
    (sandbox.handoff / ".final_model.partial").symlink_to(victim)
    (sandbox.handoff / "collect.json").symlink_to(victim / "precious")
    (sandbox.handoff / ".collect.json.partial").symlink_to(victim / "precious")
    (sandbox.artifacts / "workspace").symlink_to(victim)
    (sandbox.artifacts / "snapshot.json").mkdir()
    (sandbox.artifacts / "snapshot.json" / "x").touch()
    (sandbox.artifacts / "final_model_config").symlink_to(victim)
    done, report = sandbox.collect()
    assert done.returncode == 0, done.stderr
    assert report is not None
    assert report["final_model"] == "copied"
    assert [path.name for path in victim.iterdir()] == ["precious"]
    assert (victim / "precious").read_text() == "kept"


def test_names_that_are_no_text_survive(sandbox):
    model = make_model(sandbox)
    Path(os.fsdecode(bytes(model) + b"/\xff\xfe")).write_text("odd")
    Path(os.fsdecode(bytes(sandbox.workspace) + b"/new\nline\xff.py")).write_text("odd")
    os.mkfifo(os.fsdecode(bytes(model) + b"/pipe\xff"))
    done, report = sandbox.collect()
    assert done.returncode == 0, done.stderr
    assert report is not None
    assert report["files"] == 3
    assert len(report["skipped"]) == 1


def test_a_sparse_file_between_data_keeps_both(sandbox):
    model = make_model(sandbox)
    with (model / "holes.bin").open("wb") as file:
        file.write(b"start")
        file.seek(50 * 2**20)
        file.write(b"middle")
        file.truncate(GIB)
    sandbox.collect()
    copied = sandbox.model / "holes.bin"
    assert copied.stat().st_size == GIB
    assert allocated(sandbox.model) < 2**20
    with copied.open("rb") as file:
        assert file.read(6) == b"start\0"
        file.seek(50 * 2**20 - 1)
        assert file.read(8) == b"\0middle\0"


def collect_with_limited_files(sandbox: Sandbox, most: int) -> subprocess.CompletedProcess:
    """Run the hook where no file may grow beyond ``most`` bytes: every write above fails, as on a full disk."""
    folders = ("--workspace", sandbox.workspace, "--handoff", sandbox.handoff, "--artifacts", sandbox.artifacts)
    return subprocess.run(
        [str(part) for part in (sys.executable, "-I", COLLECT, *folders)],
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (most, most)),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_a_failed_write_is_told_and_leaves_no_half_model(sandbox):
    (make_model(sandbox) / "model.safetensors").write_bytes(b"x" * 200_000)
    done = collect_with_limited_files(sandbox, 100_000)
    report = read(sandbox.handoff / "collect.json")
    assert done.returncode == 1
    assert report is not None
    assert report["final_model"] == "failed"
    assert "File too large" in report["error"]
    assert [path.name for path in sandbox.handoff.iterdir()] == ["collect.json"]


def test_where_not_even_the_report_can_be_written_there_is_none(sandbox):
    make_model(sandbox)
    done = collect_with_limited_files(sandbox, 10)
    assert done.returncode == 1
    assert not (sandbox.handoff / "collect.json").exists()


# The snapshot.


def test_code_and_data_are_kept_and_the_rest_is_listed(sandbox):
    make_model(sandbox)
    keep = {"train.py": "code", "src/deep/lib.py": "more", "data/set.jsonl": "{}"}
    drop = {"base_model/w": "w", ".git/HEAD": "h", "src/__pycache__/lib.pyc": "c", "venv/bin/python": "p"}
    for name, content in (keep | drop).items():
        path = sandbox.workspace / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    (sandbox.workspace / "data" / "link").symlink_to("/etc/passwd")
    os.mkfifo(sandbox.workspace / "pipe")
    sandbox.collect()
    kept = sandbox.artifacts / "workspace"
    files = {str(p.relative_to(kept)): p.read_text() for p in kept.rglob("*") if stat.S_ISREG(p.lstat().st_mode)}
    assert files == keep
    snapshot = read(sandbox.artifacts / "snapshot.json")
    assert snapshot is not None
    assert (snapshot["files"], snapshot["bytes"], snapshot["error"]) == (3, 10, None)
    assert snapshot["limits"] == {"max_file_bytes": 512 * 2**20, "max_total_bytes": 2 * GIB}
    assert snapshot["links"] == [{"path": "data/link", "target": "/etc/passwd"}]
    assert reasons(snapshot["left_out"]) == {
        "final_model": "handed over as the model",
        "base_model": "the given base model",
        ".git": "cache",
        "src/__pycache__": "cache",
        "venv": "cache",
        "pipe": "named pipe",
    }
    assert next(entry for entry in snapshot["left_out"] if entry["path"] == "final_model")["bytes"] == 7002


def test_limits_hold_and_small_files_go_first(sandbox):
    for name, size in {"huge.bin": 3 * 2**20, "c.bin": 2**20, "b.bin": 2**20 - 1, "a.py": 100}.items():
        (sandbox.workspace / name).write_bytes(b"x" * size)
    done, _ = sandbox.collect("--max-file-mb", 2, "--max-total-mb", 2)
    assert done.returncode == 0
    assert sorted(path.name for path in (sandbox.artifacts / "workspace").iterdir()) == ["a.py", "b.bin"]
    snapshot = read(sandbox.artifacts / "snapshot.json")
    assert snapshot is not None
    assert snapshot["left_out"] == [
        {"path": "huge.bin", "bytes": 3 * 2**20, "reason": "over the limit for one file"},
        {"path": "c.bin", "bytes": 2**20, "reason": "over the limit for all files together"},
    ]
    assert snapshot["left_out_total"] == {"entries": 2, "bytes": 4 * 2**20}


def test_tens_of_thousands_of_files(sandbox):
    for folder in range(100):
        (sandbox.workspace / f"d{folder}").mkdir()
        for number in range(150):
            (sandbox.workspace / f"d{folder}" / f"{number}.txt").touch()
    done, _ = sandbox.collect(timeout=60)
    snapshot = read(sandbox.artifacts / "snapshot.json")
    assert done.returncode == 0
    assert snapshot is not None
    assert snapshot["files"] == 15_000


def test_very_deep_folders_end(sandbox):
    make_model(sandbox)
    for top in ("final_model", "."):
        here = os.open(sandbox.workspace / top, os.O_RDONLY)
        for _ in range(300):
            os.mkdir("d" * 20, dir_fd=here)
            inner = os.open("d" * 20, os.O_RDONLY, dir_fd=here)
            os.close(here)
            here = inner
        os.close(here)
    done, report = sandbox.collect(timeout=30)
    assert done.returncode == 0, done.stderr
    assert report is not None
    assert [entry["reason"] for entry in report["skipped"]] == ["deeper than 64 folders"]


def test_the_workspace_stays_as_it_was(sandbox):
    model = make_model(sandbox)
    (model / "link").symlink_to("config.json")
    os.mkfifo(model / "pipe")
    (sandbox.workspace / "train.py").write_text("code")
    before = fingerprint(sandbox.root / "workspace")
    sandbox.collect()
    assert fingerprint(sandbox.root / "workspace") == before


def test_running_it_again_gives_the_same(sandbox):
    make_model(sandbox)
    (sandbox.workspace / "a.py").write_text("a")
    first, second = ((sandbox.collect()[1] or {}) | {"seconds": 0} for _ in range(2))
    assert first == second
    assert first["files"] == 2
