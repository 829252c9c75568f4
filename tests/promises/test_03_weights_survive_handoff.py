"""Promise 3: final weights survive the hand-over, whatever their size, and the snapshot stays within its budget."""

import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "templates"))

from template_kit import Sandbox, fingerprint, read  # pyright: ignore[reportMissingImports]

GIB = 2**30


def used(folder: Path) -> int:
    return sum(path.lstat().st_blocks * 512 for path in folder.rglob("*"))


def test_a_sparse_file_of_6_gib_goes_over_in_no_time_and_no_space(tmp_path):
    sandbox = Sandbox(tmp_path)
    model = sandbox.workspace / "final_model"
    model.mkdir()
    with (model / "model.safetensors").open("wb") as file:
        file.seek(3 * GIB)
        file.write(b"in the middle")
        file.truncate(6 * GIB)
    (sandbox.workspace / "checkpoint.bin").write_bytes(b"x" * 2**21)
    (sandbox.workspace / "train.py").write_text("code")
    before = fingerprint(sandbox.workspace)

    started = time.monotonic()
    done, report = sandbox.collect("--max-file-mb", 1, "--max-total-mb", 1)
    assert time.monotonic() - started < 10
    assert done.returncode == 0, done.stderr
    assert report is not None
    assert (report["final_model"], report["bytes"]) == ("copied", 6 * GIB)
    with (sandbox.model / "model.safetensors").open("rb") as file:
        file.seek(3 * GIB)
        assert file.read(13) == b"in the middle"
    assert (sandbox.model / "model.safetensors").stat().st_size == 6 * GIB
    assert used(sandbox.model) < 2**20

    assert [path.name for path in (sandbox.artifacts / "workspace").iterdir()] == ["train.py"]
    assert used(sandbox.artifacts) < 2**20
    snapshot = read(sandbox.artifacts / "snapshot.json")
    assert snapshot is not None
    left_out = {entry["path"]: entry["bytes"] for entry in snapshot["left_out"]}
    assert left_out == {"final_model": 6 * GIB, "checkpoint.bin": 2**21}
    assert fingerprint(sandbox.workspace) == before
