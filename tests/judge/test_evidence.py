"""Judges cannot leave the evidence, whatever the agent left in it and whatever path they ask for."""

from __future__ import annotations

import os
import socket

import pytest

from ptb_runner.judge.evidence import Evidence, Refused
from tests.judge.judge_kit import box, evidence, use

SECRET = "the host's own secret"


@pytest.fixture
def place(tmp_path):
    """Evidence beside a host's file, with every way out of it that an agent could build."""
    (tmp_path / "host").mkdir()
    (tmp_path / "host/secret.txt").write_text(SECRET)
    own = tmp_path / "trial"
    files = {"workspace/real.txt": "real", "workspace/deep/er/file.txt": "deep"}
    toolbox = box(own, files)
    work = own / "workspace"
    (work / "link.txt").symlink_to(tmp_path / "host/secret.txt")
    (work / "relative.txt").symlink_to("../../host/secret.txt")
    (work / "folder").symlink_to(tmp_path / "host")
    (work / "inner").symlink_to("deep")
    (work / "loop").symlink_to(".")
    os.mkfifo(work / "pipe")
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(str(work / "socket"))
    return toolbox


@pytest.mark.parametrize(
    "path",
    [
        "workspace/link.txt",
        "workspace/relative.txt",
        "workspace/folder/secret.txt",
        "workspace/folder",
        "workspace/inner/er/file.txt",  # also one that stays inside: a link is a link
        "workspace/loop/loop/real.txt",
        "workspace/../../host/secret.txt",
        "../host/secret.txt",
        "..",
        "workspace/pipe",
        "workspace/socket",
        "workspace/nowhere",
        "/etc/passwd",
        "/proc/self/environ",
        "test_data.json",
        "workspace/real.txt/x",
        "workspace/" + "x/" * 100,
        "workspace/nul\0",
        "",
    ],
)
def test_no_path_leads_out(place, path):
    for name in ("read_file", "list_files", "search", "check_contamination"):
        if name == "search":
            answer = use(place, name, pattern=".", path=path)
        elif name == "list_files" and path == "":
            continue
        else:
            answer = use(place, name, path=path)
        assert SECRET not in str(answer)
        assert "root:" not in str(answer)
        if path or name == "read_file":
            assert "error" in answer, (name, answer)


def test_the_whole_tree_is_walked_without_following(place):
    entries = {entry["path"]: entry for entry in use(place, "list_files", depth=60)["entries"]}
    assert entries["workspace/deep/er/file.txt"]["bytes"] == 4
    assert {path for path, entry in entries.items() if entry["kind"] == "link"} == {
        f"workspace/{name}" for name in ("link.txt", "relative.txt", "folder", "inner", "loop")
    }
    assert entries["workspace/pipe"]["kind"] == "special"
    assert not any(path.startswith(("workspace/loop/", "workspace/folder/")) for path in entries)
    found = use(place, "search", pattern="real|deep|secret")
    assert {hit["path"] for hit in found["hits"]} == {"workspace/real.txt", "workspace/deep/er/file.txt"}


def test_a_place_that_the_agent_made_a_link_of_is_refused(tmp_path):
    (tmp_path / "host").mkdir()
    (tmp_path / "host/secret.txt").write_text(SECRET)
    (tmp_path / "trial/artifacts").mkdir(parents=True)
    (tmp_path / "trial/artifacts/workspace").symlink_to(tmp_path / "host")
    found = Evidence({"workspace": (tmp_path / "trial", "artifacts/workspace")})
    assert list(found.list(".")) == []
    with pytest.raises(Refused, match="links are not followed"):
        found.open("workspace/secret.txt")


def test_no_descriptors_are_left_open(tmp_path):
    found = evidence(tmp_path, {"workspace/a/b/c.txt": "x"})
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    for _ in range(20):
        list(found.list(".", 60))
        os.close(found.open("workspace/a/b/c.txt"))
        for bad in ("workspace/a", "workspace/a/none", "workspace/a/b/c.txt/d"):
            with pytest.raises(Refused):
                found.open(bad)
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208
