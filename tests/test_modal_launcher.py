"""Parts of launcher=modal that need no Modal: what is shipped, what is copied, what is refused."""

from __future__ import annotations

import importlib.metadata
import os
import tarfile

import pytest

from ptb_runner.doctor import compose_all
from ptb_runner.launch import modal, modal_image, shipping
from ptb_runner.launch.copies import Copy


@pytest.fixture
def folder(tmp_path):
    place = tmp_path / "cell"
    (place / "job" / "hello__001").mkdir(parents=True)
    (place / "task" / "tests").mkdir(parents=True)
    (place / "handoff").mkdir()
    for name in ("cell.yaml", "status.json", "launcher.json", "handoff/weights", "task/tests/test.sh"):
        (place / name).write_text(name)
    (place / "job" / "hello__001" / "result.json").write_text("{}")
    (place / "task" / "tests" / "test.sh").chmod(0o755)
    (place / "task" / "link").symlink_to("tests/test.sh")
    return place


def test_a_cell_is_shipped_as_it_is_but_for_what_is_this_machines(folder, tmp_path):
    (tmp_path / "sweep.yaml").write_text("cells: []")
    shipping.pack(folder, tmp_path / "sweep.yaml", tmp_path / "cell.tar")
    place = tmp_path / "there"
    with tarfile.open(tmp_path / "cell.tar") as archive:
        archive.extractall(place, filter="tar")
    assert {path.name for path in place.iterdir()} == {"cell.yaml", "job", "status.json", "sweep.yaml", "task"}
    assert (place / "task" / "tests" / "test.sh").stat().st_mode & 0o111
    assert (place / "task" / "link").readlink().name == "test.sh"


def test_a_copy_follows_its_source(folder, tmp_path):
    copy = tmp_path / "copy"
    Copy(folder, copy).update()
    assert not (copy / "task").exists()  # it came with the submission
    assert (copy / "job" / "hello__001" / "result.json").read_text() == "{}"
    untouched = (copy / "handoff" / "weights").stat().st_ino
    (folder / "job" / "hello__001").rename(folder / "job" / "hello__002")
    (folder / "status.json").write_text("changed")
    (folder / ".status.json.7.tmp").write_text("half")
    Copy(folder, copy).update()
    assert [path.name for path in (copy / "job").iterdir()] == ["hello__002"]
    assert (copy / "status.json").read_text() == "changed"
    assert not list(copy.glob(".*.tmp"))
    assert (copy / "handoff" / "weights").stat().st_ino == untouched


def test_the_image_has_the_versions_that_are_installed_here():
    pins = shipping.pins("modal")
    assert f"harbor=={importlib.metadata.version('harbor')}" in pins
    assert any(one.startswith("modal==") for one in pins)
    assert not [one for one in pins if one.startswith("pytest")]
    assert len(pins) == len({one.partition("=")[0] for one in pins})


def test_values_of_secrets_are_taken_by_name_from_this_process(monkeypatch):
    monkeypatch.setenv("PTB_TEST_KEY", "value")
    monkeypatch.delenv("PTB_TEST_ABSENT", raising=False)
    found = modal_image.secrets(["PTB_TEST_KEY", "PTB_TEST_ABSENT"], ["held"])
    assert len(found) == 2
    assert "value" not in repr(found)
    assert os.environ["PTB_TEST_KEY"] == "value"


def problems(*overrides: str) -> list[str]:
    cells = compose_all(["launcher=modal", "agent=oracle", *overrides])
    return modal.problems(cells[0].launcher, cells)  # pyright: ignore[reportArgumentType]


def test_what_cannot_run_there_is_told(monkeypatch):
    monkeypatch.setenv("MODAL_TOKEN_ID", "ak-x")
    monkeypatch.setenv("MODAL_TOKEN_SECRET", "as-x")
    [engine] = problems("benchmark=hello", "backend=podman,docker", "seed=1,2")[:1]
    assert engine == "launcher=modal: there is no podman in a Modal function\n  type backend=modal"
    [long] = problems("benchmark=gsm8k", "attempts=3", "concurrency=2", "backend=bubblewrap")
    assert "too short for 3 trials of up to 20 h, 2 at a time" in long
    assert problems("benchmark=gsm8k", "attempts=3", "concurrency=3", "backend=bubblewrap") == []
