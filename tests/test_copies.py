"""Copies of a cell's folder, made while it is written to."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import override

import pytest

from ptb_runner.launch import away, shipping
from ptb_runner.launch.copies import Copy, begin
from ptb_runner.redact import Redactor


@pytest.fixture
def cell(tmp_path) -> Path:
    folder = tmp_path / "cell"
    for name in ("job/hello__001/verifier/reward.txt", "job/hello__001/result.json", "status.json", "cell.yaml"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("first")
    return folder


def test_a_trial_is_over_in_the_copy_only_with_all_its_files(cell, tmp_path):
    """It ends while it is copied: its reward was copied before, and is not the one that it has at the end."""

    class Meanwhile(Redactor):
        @override
        def file(self, path: Path) -> None:
            (cell / "job/hello__001/verifier/reward.txt").write_text("the real one")
            (cell / "job/hello__001/result.json").write_text("the trial is over")

    copy = tmp_path / "copy"
    made = Copy(cell, copy, clean=Meanwhile({}))
    made.update()
    made.clean = None
    assert not (copy / "job/hello__001/result.json").exists()
    made.update()
    assert (copy / "job/hello__001/result.json").read_text() == "the trial is over"
    assert (copy / "job/hello__001/verifier/reward.txt").read_text() == "the real one"


def test_the_first_copy_is_there_when_it_is_whole(cell, tmp_path):
    copy, partial = tmp_path / "copy", tmp_path / "copy.new"
    partial.mkdir()
    (partial / "job").write_text("in the way")
    (fault, *_) = begin(Copy(cell, copy))
    assert fault.startswith("job: ")
    assert not copy.exists()
    (partial / "job").unlink()
    assert begin(Copy(cell, copy)) == []
    assert (copy / "status.json").exists()
    assert not partial.exists()


def test_secrets_stay_out_of_copies(cell, tmp_path):
    (cell / "job/hello__001/agent.log").write_text("key: s3cret-value")
    Copy(cell, tmp_path / "copy", clean=Redactor({"KEY": "s3cret-value"})).update()
    assert (tmp_path / "copy/job/hello__001/agent.log").read_text() == "key: ${KEY}"
    assert (cell / "job/hello__001/agent.log").read_text() == "key: s3cret-value"


def test_a_hand_off_is_copied_once_its_trial_is_over(cell, tmp_path):
    for trial in ("hello__001", "hello__002"):
        (cell / "handoff" / trial).mkdir(parents=True)
        (cell / "handoff" / trial / "weights").touch()
    Copy(cell, tmp_path / "copy").update()
    assert [path.name for path in (tmp_path / "copy" / "handoff").iterdir()] == ["hello__001"]


def test_what_is_no_file_is_passed_over(cell, tmp_path):
    os.mkfifo(cell / "job" / "pipe")
    assert Copy(cell, tmp_path / "copy").update() == []


def test_a_copy_goes_on_from_what_was_there_and_touches_only_what_changed(cell, tmp_path):
    copy = tmp_path / "copy"
    Copy(cell, copy).update()
    (copy / "left.txt").write_text("of an earlier runner")
    old = (copy / "status.json").stat().st_ino
    made = Copy(cell, copy)
    assert made.update() == []
    assert not (copy / "left.txt").exists()
    assert (copy / "status.json").stat().st_ino == old
    (cell / "status.json").write_text("changed")
    (cell / "job/hello__001").rename(cell / "job/hello__002")
    made.update()
    assert (copy / "status.json").read_text() == "changed"
    assert [path.name for path in (copy / "job").iterdir()] == ["hello__002"]
    assert (copy / "job/hello__002/verifier/reward.txt").read_text() == "first"


def test_a_place_that_cannot_be_written_to_is_told(cell, tmp_path):
    (tmp_path / "file").touch()
    (fault,) = Copy(cell, tmp_path / "file" / "copy").update()
    assert fault.endswith("Not a directory")


def test_a_copy_that_somebody_removed_is_made_anew(cell, tmp_path):
    copy = Copy(cell, tmp_path / "copy")
    assert copy.update() == []
    shutil.rmtree(copy.target / "job")
    (cell / "job/hello__001/result.json").write_text("changed")
    assert copy.update() == ["job/hello__001/result.json: No such file or directory"]
    assert copy.update() == []
    assert (copy.target / "job/hello__001/verifier/reward.txt").exists()


def test_what_an_earlier_runner_saved_goes_over_what_was_submitted(cell, tmp_path):
    """A trial that it had set aside does not come back, and neither do files of the try that was set aside."""
    sweep, saved, folder = tmp_path / "sweep.yaml", tmp_path / "saved", tmp_path / "work" / "0"
    sweep.write_text("cells: []")
    (cell / "judge").mkdir()
    (cell / "judge" / "prompt.txt").write_text("new in this submission")
    shipping.pack(cell, sweep, tmp_path / "cell.tar")
    for name, text in {"job/hello__001/result.json": "second try", "cell.yaml": "old", "status.json": "later"}.items():
        (saved / name).parent.mkdir(parents=True, exist_ok=True)
        (saved / name).write_text(text)
    (saved / "job/.hello__001.copy.tmp").write_text("half")
    away.unpack(tmp_path / "cell.tar", saved, folder)
    files = {path.relative_to(folder).as_posix(): path.read_text() for path in folder.rglob("*") if path.is_file()}
    assert files == {
        "cell.yaml": "first",
        "status.json": "later",
        "job/hello__001/result.json": "second try",
        "judge/prompt.txt": "new in this submission",
    }
    assert (folder.parent / "sweep.yaml").exists()
