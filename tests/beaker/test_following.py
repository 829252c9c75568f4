"""What became of a sweep's jobs, from any process: states, attempts, logs, results, stop, resume."""

from __future__ import annotations

import json
import threading

import pytest

pytestmark = pytest.mark.beaker


def test_a_job_in_the_queue_says_why(beaker_cells):
    beaker_cells.server.hold("waiting for 8 GPUs on ai2/saturn")
    assert beaker_cells.submit().code == 0
    beaker_cells.wait_for_jobs(0, lambda jobs: jobs and jobs[0]["status"] == "queued")
    ran = beaker_cells.ptb("status", beaker_cells.sweep)
    assert "Beaker says: waiting for 8 GPUs on ai2/saturn" in ran.out
    assert f"cell 0: {beaker_cells.record(0)['link']}" in ran.out
    assert beaker_cells.state() == "planned"


def test_results_are_brought_from_beaker_when_weka_is_not_mounted(beaker_cells):
    beaker_cells.jobs_do("--waits")
    assert beaker_cells.submit().code == 0
    beaker_cells.wait_until_at_work()
    ran = beaker_cells.ptb("status", beaker_cells.sweep)
    assert beaker_cells.state() == "running"
    assert "not mounted here; brought when its job is over" in ran.out
    beaker_cells.open_gate()
    beaker_cells.wait_for_jobs(0, lambda jobs: jobs[0]["finalized"])
    ran = beaker_cells.ptb("collect", beaker_cells.sweep)
    assert (ran.code, "1/1 planned trials scored" in ran.out) == (0, True)
    assert "results: brought from Beaker's dataset" in beaker_cells.ptb("status", beaker_cells.sweep).out
    (trial,) = (beaker_cells.sweep / "0" / "job").glob("hello__*")
    assert (trial / "result.json").read_bytes() == (beaker_cells.done / "job" / trial.name / "result.json").read_bytes()


def test_results_are_brought_from_weka_while_a_job_runs_where_it_is_mounted(beaker_cells, weka_here):
    beaker_cells.jobs_do("--waits")
    assert beaker_cells.submit().code == 0
    beaker_cells.wait_until_at_work()
    place = beaker_cells.server.folder / beaker_cells.record(0)["results"].lstrip("/") / "cell"
    (place / "job" / "hello__001").mkdir(parents=True)
    (place / "job" / "hello__001" / "trial.log").write_text("so far")
    (place / "half.tmp").write_text("under way")
    beaker_cells.ptb("status", beaker_cells.sweep)
    assert (beaker_cells.sweep / "0" / "job" / "hello__001" / "trial.log").read_text() == "so far"
    assert not (beaker_cells.sweep / "0" / "half.tmp").exists()
    (place / "job" / "hello__001" / "trial.log").unlink()
    (place / "job" / "hello__001").rmdir()
    beaker_cells.open_gate()
    beaker_cells.wait_for_jobs(0, lambda jobs: jobs[0]["finalized"])
    assert beaker_cells.ptb("collect", beaker_cells.sweep).code == 0
    assert beaker_cells.record(0)["fetched_from"] == str(place)
    assert (
        not (beaker_cells.sweep / "0" / "job" / "hello__001").exists()
        or (beaker_cells.done / "job" / "hello__001").exists()
    )


def test_a_job_that_fails_makes_its_cell_lost_with_the_reason(beaker_cells):
    beaker_cells.jobs_do("--code", "3")
    assert beaker_cells.submit().code == 0
    beaker_cells.wait_for_jobs(0, lambda jobs: jobs and jobs[0]["finalized"])
    ran = beaker_cells.ptb("status", beaker_cells.sweep)
    assert beaker_cells.state() == "lost"
    assert "attempt 1: failed (exit code 3)" in ran.out
    assert "results: none here" in ran.out
    assert "exit code 3" in json.loads((beaker_cells.sweep / "0" / "status.json").read_text())["error"]


def test_a_failed_job_is_begun_anew_as_often_as_the_user_says(beaker_cells):
    beaker_cells.jobs_do("--code", "3")
    assert beaker_cells.submit("launcher.retries=1").code == 0
    beaker_cells.wait_for_jobs(0, lambda jobs: len(jobs) == 2 and jobs[1]["finalized"])
    ran = beaker_cells.ptb("status", beaker_cells.sweep)
    assert [one["exit_code"] for one in beaker_cells.record(0)["attempts"]] == [3, 3]
    assert "attempt 2: failed (exit code 3)" in ran.out


def test_resume_submits_only_what_is_missing(beaker_cells):
    assert beaker_cells.submit("seed=1,2").code == 0
    for cell in (0, 1):
        beaker_cells.wait_for_jobs(cell, lambda jobs: jobs and jobs[0]["finalized"])
    assert beaker_cells.ptb("collect", beaker_cells.sweep).code == 0
    path = beaker_cells.sweep / "1" / "status.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"state": "lost"}))
    first = beaker_cells.record(1)
    assert beaker_cells.ptb("resume", beaker_cells.sweep).code == 0
    assert [one["name"][-3:] for one in beaker_cells.experiments()] == ["0-1", "1-1", "1-2"]
    again = beaker_cells.record(1)
    assert (again["submissions"], again["results"] == first["results"]) == (2, False)


def test_a_resumed_cell_goes_on_in_the_folder_whose_results_could_not_be_brought(beaker_cells):
    beaker_cells.jobs_do("--code", "3")
    assert beaker_cells.submit().code == 0
    beaker_cells.wait_for_jobs(0, lambda jobs: jobs and jobs[0]["finalized"])
    beaker_cells.ptb("status", beaker_cells.sweep)
    first = beaker_cells.record(0)["results"]
    beaker_cells.jobs_do()
    assert beaker_cells.ptb("resume", beaker_cells.sweep).code == 0
    assert (beaker_cells.record(0)["results"], beaker_cells.record(0)["submissions"]) == (first, 2)


def test_stop_cancels_and_waits(beaker_cells):
    beaker_cells.jobs_do("--waits")
    assert beaker_cells.submit("seed=1,2").code == 0
    for cell in (0, 1):
        beaker_cells.wait_until_at_work(cell)
    ran = beaker_cells.ptb("stop", beaker_cells.sweep / "1")
    assert (ran.code, beaker_cells.jobs(1)[0]["status"], beaker_cells.jobs(0)[0]["status"]) == (
        0,
        "canceled",
        "running",
    )
    assert beaker_cells.state(1) == "cancelled"
    assert beaker_cells.ptb("stop", beaker_cells.sweep).code == 0
    assert beaker_cells.jobs(0)[0]["canceled"]
    status = beaker_cells.ptb("status", beaker_cells.sweep)
    assert "attempt 1: canceled (manual" in status.out
    assert len(beaker_cells.jobs(0)) == 1


def test_beaker_that_does_not_answer_is_no_lost_cell(beaker_cells):
    beaker_cells.jobs_do("--waits")
    assert beaker_cells.submit("launcher.answer_sec=4").code == 0
    beaker_cells.wait_until_at_work()
    beaker_cells.ptb("status", beaker_cells.sweep)
    beaker_cells.server.fail("*", times=-1)
    ran = beaker_cells.ptb("status", beaker_cells.sweep)
    assert (ran.code, beaker_cells.state(), "Beaker says: Beaker at" in ran.out) == (0, "running", True)
    ran = beaker_cells.ptb("resume", beaker_cells.sweep)
    assert (ran.code, "Beaker at" in ran.err, len(beaker_cells.experiments())) == (2, True, 1)
    beaker_cells.server.mend()
    beaker_cells.open_gate()


# --- Logs ---------------------------------------------------------------------------------------------


def test_a_log_is_followed_over_broken_streams_without_doubled_lines(beaker_cells):
    beaker_cells.jobs_do("--lines", "20")
    beaker_cells.server.break_logs(after=7, replay=5)
    assert beaker_cells.submit().code == 0
    ran = beaker_cells.ptb("logs", beaker_cells.sweep, "0", "-f")
    lines = [line for line in ran.out.splitlines() if line.startswith("line ")]
    assert lines == [f"line {number}" for number in range(20)]
    assert ran.out.splitlines()[-1] == "cell over"


def test_a_log_is_followed_from_one_attempt_to_the_next(beaker_cells):
    beaker_cells.jobs_do("--waits", "--lines", "3")
    assert beaker_cells.submit().code == 0
    (first,) = beaker_cells.wait_for_jobs(0, lambda jobs: jobs and "line 2" in jobs[0]["log"])

    def preempt() -> None:
        beaker_cells.server.preempt(first["id"])
        beaker_cells.server.wait_for(lambda _: len(beaker_cells.jobs()) == 2)
        beaker_cells.open_gate()

    thread = threading.Timer(0.5, preempt)
    thread.start()
    ran = beaker_cells.ptb("logs", beaker_cells.sweep, "0", "-f")
    thread.join()
    assert [line for line in ran.out.splitlines() if "attempt" in line] == [
        f"==> attempt {number}: job {job['id']} <==" for number, job in enumerate(beaker_cells.jobs(), 1)
    ]
    assert ran.out.count("line 1\n") == 2
    assert ran.out.count("cell over") == 1


def test_the_log_of_a_beaker_that_is_gone_ends(beaker_cells):
    beaker_cells.jobs_do("--waits")
    assert beaker_cells.submit("launcher.answer_sec=4").code == 0
    beaker_cells.wait_until_at_work()
    timer = threading.Timer(1.0, lambda: beaker_cells.server.fail("*", times=-1))
    timer.start()
    beaker_cells.server.break_logs(after=0)
    ran = beaker_cells.ptb("logs", beaker_cells.sweep, "0", "-f")
    timer.join()
    assert (ran.code, "Beaker at" in ran.err) == (2, True)
    beaker_cells.server.mend()
    beaker_cells.open_gate()
