"""Promise 20: commits that jobs could not clone are found before anything is submitted."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from ptb_runner.config import BeakerLauncherConfig, CodeFrom
from ptb_runner.doctor import compose
from ptb_runner.explain import UsageError
from ptb_runner.launch import beaker_source
from ptb_runner.launch.beaker_spec import Source


def git(folder: Path, *arguments: str) -> str:
    own = ["-c", "user.name=tester", "-c", "user.email=tester@example.org"]
    return subprocess.run(
        ["git", *own, *arguments], cwd=folder, check=True, capture_output=True, text=True
    ).stdout.strip()


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A checkout of the program whose one commit is at its remote."""
    root = tmp_path / "checkout"
    for name in ("ptb_runner", "conf", "templates"):
        (root / name).mkdir(parents=True)
        (root / name / "file").write_text(name)
    git(tmp_path, "init", "--quiet", "--bare", "remote.git")
    git(root, "init", "--quiet", "--initial-branch=main")
    git(root, "remote", "add", "origin", str(tmp_path / "remote.git"))
    commit(root)
    git(root, "push", "--quiet", "origin", "main")
    for name in ("ptb_runner", "conf", "templates"):
        attribute = "PACKAGE" if name == "ptb_runner" else name.upper()
        monkeypatch.setattr(beaker_source, attribute, root / name)
    return root


def commit(root: Path) -> str:
    git(root, "add", "--all")
    git(root, "commit", "--quiet", "--message=change")
    return git(root, "rev-parse", "HEAD")


def source() -> Source | None:
    return beaker_source.source(BeakerLauncherConfig(code=CodeFrom.git), [compose([])])


def refusal() -> str:
    with pytest.raises(UsageError) as caught:
        source()
    return str(caught.value)


def test_a_pushed_commit_is_what_jobs_clone(checkout):
    assert source() == Source(git(checkout, "remote", "get-url", "origin"), git(checkout, "rev-parse", "HEAD"))
    (checkout / "multirun").mkdir()
    (checkout / "multirun" / "result").write_text("not part of the program")
    assert source()


def test_a_commit_that_was_not_pushed_is_refused(checkout):
    (checkout / "ptb_runner" / "file").write_text("changed")
    unpushed = commit(checkout)
    assert f"commit {unpushed[:12]} is not at" in refusal()
    assert "git push, or type launcher.code=wheel" in refusal()


def test_what_this_checkout_remembers_of_its_remote_does_not_count(checkout, tmp_path):
    (checkout / "ptb_runner" / "file").write_text("changed")
    gone = commit(checkout)
    git(checkout, "update-ref", "refs/remotes/origin/main", gone)  # as after a push that somebody has undone
    assert f"commit {gone[:12]} is not at" in refusal()


@pytest.mark.parametrize("name", ["ptb_runner/file", "conf/new.yaml"])
def test_what_is_not_committed_is_refused_by_name(checkout, name):
    (checkout / name).write_text("changed")
    assert f"what is not committed would not run: {name}\n  commit and push, or type launcher.code=wheel" in refusal()


def test_an_agent_of_ones_own_outside_the_checkout_is_refused(checkout, tmp_path, monkeypatch):
    (tmp_path / "my_own_agent.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    cell = compose(["agent=custom", "agent.id=mine", "agent.import_path=my_own_agent:Mine"])
    with pytest.raises(UsageError, match=r"my_own_agent\.py is not in the checkout"):
        beaker_source.source(BeakerLauncherConfig(code=CodeFrom.git), [cell])


def test_a_remote_that_cannot_be_read_is_told(checkout, tmp_path):
    git(checkout, "remote", "set-url", "origin", str(tmp_path / "nowhere.git"))
    assert "cannot be read without a password" in refusal()


@pytest.mark.parametrize("url", ["git@example.org:us/it.git", "ssh://git@example.org/us/it.git"])
def test_a_job_has_no_ssh_key(url):
    assert beaker_source._over_https(url) == "https://example.org/us/it.git"


@pytest.mark.beaker
def test_nothing_is_submitted(beaker_cells, checkout):
    (checkout / "ptb_runner" / "file").write_text("changed")
    before = beaker_cells.server.calls("CreateExperiment")
    ran = beaker_cells.submit("launcher.code=git")
    assert (ran.code, "what is not committed would not run: ptb_runner/file" in ran.err) == (2, True)
    assert not beaker_cells.sweep.exists()
    assert beaker_cells.server.calls("CreateExperiment") == before


@pytest.mark.beaker
def test_a_pushed_commit_is_what_the_experiment_names(beaker_cells, checkout):
    assert beaker_cells.submit("launcher.code=git").code == 0
    (experiment,) = beaker_cells.experiments()
    given = {one["name"]: one.get("value") for one in experiment["spec"]["tasks"][0]["envVars"]}
    assert (given["PTB_GIT_URL"], given["PTB_GIT_COMMIT"]) == (
        git(checkout, "remote", "get-url", "origin"),
        git(checkout, "rev-parse", "HEAD"),
    )
