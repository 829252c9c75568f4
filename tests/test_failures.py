"""What agents do to their own sandbox, and what becomes of the trial. CLIs: tests/clis/test_cli_failures.py."""

from __future__ import annotations

import os
import subprocess

import pytest

from tests.run_kit import agent, only_cell

SUMS = ("benchmark=addition", "benchmark.evaluation.limit=10", "retry.wait_sec=0")


def test_an_agent_that_deletes_its_workspace_has_left_no_model(ptb):
    assert ptb(*SUMS, *agent("Scripted", command="cp -r base_model final_model; rm -rf * .[!.]*")).code == 1
    trial = only_cell().trial()
    assert (trial["outcome"], trial["reward"]) == ("no_model", None)
    assert trial["error"]["message"]
    assert "\n" not in trial["error"]["message"]


def test_an_agent_that_deletes_the_folder_itself_has_left_no_model(ptb):
    assert ptb(*SUMS, *agent("Scripted", command='rm -rf "$(pwd)" || true')).code == 1
    trial = only_cell().trial()
    assert (trial["outcome"], trial["reward"]) == ("no_model", None)


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 120 MiB."""
    if os.geteuid() != 0:
        pytest.skip("needs root to make a file system")
    place = tmp_path / "small"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=120m", "none", place], check=True)
    yield place
    subprocess.run(["umount", "-l", place], check=True)


def test_an_agent_that_fills_the_disk_gets_no_score_for_half_a_model(ptb, small_disk):
    fill = "cat /dev/zero > big 2> /dev/null; cp -r base_model final_model 2> /dev/null; true"
    ran = ptb(*SUMS, *agent("Scripted", command=fill), f"backend.scratch_dir={small_disk}", "retry.infra_errors=0")
    assert ran.code == 1, ran.err
    trial = only_cell().trial()
    assert trial["outcome"] in ("no_model", "invalid_model", "infra_error"), trial["error"]
    assert trial["reward"] is None
    assert trial["error"]["message"]
