"""The fake Beaker is one to the real client, and its jobs really run."""

from __future__ import annotations

import time
import uuid
from pathlib import Path
from typing import Any

import grpc
import pytest
import requests
from beaker import (
    Beaker,
    BeakerExperimentSpec,
    BeakerJob,
    BeakerRetrySpec,
    BeakerSortOrder,
    BeakerTaskSpec,
    BeakerWorkloadStatus,
)
from beaker import exceptions as errors

pytestmark = pytest.mark.beaker


def task(*command: str, **options: Any) -> BeakerTaskSpec:
    given = {"cluster": ["ai2/saturn"], "beaker_image": "ai2/base", "priority": "high", "result_path": "/results"}
    return BeakerTaskSpec.new("main", **{**given, **options}, command=["bash", "-c", "\n".join(command)])


def begin(beaker_client: Beaker, spec: BeakerTaskSpec, **options: Any) -> Any:
    experiment = BeakerExperimentSpec(tasks=[spec], budget="ai2/oe-adapt", **options)
    return beaker_client.experiment.create(spec=experiment, name=f"run-{uuid.uuid4().hex[:8]}")


def finished(beaker_client: Beaker, workload: Any) -> BeakerJob:
    """The task's last job, once it is over."""
    while True:
        job = beaker_client.workload.get_latest_job(beaker_client.workload.get(workload.experiment.id))
        if job and job.status.HasField("finalized"):
            return job
        time.sleep(0.05)


def said(beaker_client: Beaker, job: BeakerJob) -> list[str]:
    return [line.message.decode().rstrip("\n") for line in beaker_client.job.logs(job, follow=True)]


def test_a_job_runs_with_its_datasets_secrets_bucket_and_results(beaker_client, beaker_server, tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "word.txt").write_text("given")
    dataset = beaker_client.dataset.create(f"code-{uuid.uuid4().hex[:8]}", tmp_path / "in")
    beaker_client.secret.write("MY_TOKEN", "s3cret")
    spec = task(
        'echo "$(cat /code/word.txt) $TOKEN $PLAIN"',
        "echo out > /results/a.txt; mkdir -p /weka/mine/x && echo kept > /weka/mine/x/b.txt",
        "touch /code/new || echo read-only; echo $$; exit 7",
    )
    spec = spec.with_dataset("/code", beaker=dataset.id).with_dataset("/weka/mine", weka="mine")
    spec = spec.with_env_var("TOKEN", secret="MY_TOKEN").with_env_var("PLAIN", value="plain")
    job = finished(beaker_client, begin(beaker_client, spec))
    assert (job.status.status, job.status.exit_code) == (BeakerWorkloadStatus.failed, 7)
    lines = said(beaker_client, job)
    assert lines[0] == "given s3cret plain"
    assert lines[-2:] == ["read-only", "1"]
    results = beaker_client.job.get_results(job)
    assert results is not None
    assert b"".join(beaker_client.dataset.stream_file(results, "a.txt")) == b"out\n"
    assert (beaker_server.weka("mine") / "x" / "b.txt").read_text() == "kept\n"
    assert not Path("/weka").exists()


def test_a_large_file_comes_back_whole(beaker_client, tmp_path):
    content = bytes(range(256)) * 150_000  # more than one request takes
    (tmp_path / "large.bin").write_bytes(content)
    dataset = beaker_client.dataset.create(f"large-{uuid.uuid4().hex[:8]}", tmp_path / "large.bin")
    assert b"".join(beaker_client.dataset.stream_file(dataset, "large.bin", chunk_size=1 << 20)) == content
    with pytest.raises(errors.BeakerDatasetWriteError):
        beaker_client.dataset.upload(dataset, b"more", "more.txt")
    with pytest.raises(errors.BeakerDatasetConflict):
        beaker_client.dataset.create(dataset.name)


def test_a_preempted_task_gets_another_job_and_both_are_listed(beaker_client, beaker_server):
    script = ("trap 'echo told; exit 0' TERM", "[ -e /weka/w/again ] && exit 0", "touch /weka/w/again; sleep 60 & wait")
    bucket = uuid.uuid4().hex[:8]
    workload = begin(beaker_client, task(*script, auto_resume=True).with_dataset("/weka/w", weka=bucket))
    beaker_server.wait_for(lambda _: (beaker_server.weka(bucket) / "again").exists())
    (first,) = beaker_server.jobs(workload.experiment.id)
    beaker_server.preempt(first["id"])
    beaker_server.wait_for(lambda _: len(beaker_server.jobs(workload.experiment.id)) == 2)
    last = finished(beaker_client, workload)
    jobs = list(beaker_client.job.list(task=workload.experiment.tasks[0], sort_order=BeakerSortOrder.ascending))
    assert [one.status.HasField("canceled") for one in jobs] == [True, False]
    assert jobs[0].status.exit_code == 0
    assert said(beaker_client, jobs[0]) == ["told"]
    assert last.status.status == BeakerWorkloadStatus.succeeded
    assert last.retry_ancestor_id == first["id"]


def test_a_killed_job_and_one_that_may_not_come_back(beaker_client, beaker_server):
    workload = begin(beaker_client, task("echo begun; sleep 60 & wait"))
    beaker_server.wait_for(lambda _: any("begun" in one["log"] for one in beaker_server.jobs(workload.experiment.id)))
    beaker_server.kill(beaker_server.jobs(workload.experiment.id)[0]["id"])
    job = finished(beaker_client, workload)
    assert (job.status.status, job.status.exit_code) == (BeakerWorkloadStatus.canceled, 137)
    assert len(beaker_server.jobs(workload.experiment.id)) == 1


def test_failures_are_retried_as_often_as_the_spec_says(beaker_client, beaker_server):
    workload = begin(beaker_client, task("exit 3"), retry=BeakerRetrySpec(allowed_task_retries=1))
    beaker_server.wait_for(lambda _: len(beaker_server.jobs(workload.experiment.id)) == 2)
    assert finished(beaker_client, workload).status.exit_code == 3
    assert len(beaker_server.jobs(workload.experiment.id)) == 2


def test_a_queue_says_why_and_a_waiting_job_can_be_cancelled(beaker_client, beaker_server):
    beaker_server.hold("insufficient GPUs: 8 wanted, 3 free")
    workload = begin(beaker_client, task("echo never"))
    beaker_server.wait_for(lambda _: beaker_client.workload.get_latest_job(workload).status.failed_scheduling_message)
    job = beaker_client.workload.get_latest_job(workload)
    assert "insufficient" in job.status.failed_scheduling_message
    assert "insufficient" in next(iter(beaker_client.job.list_summarized_events(job))).latest_message
    assert beaker_client.workload.cancel(workload) == [workload.experiment.id]
    job = finished(beaker_client, workload)
    assert job.status.status == BeakerWorkloadStatus.canceled
    assert not job.status.HasField("exit_code")


def test_time_limits_and_secrets_that_are_not_there(beaker_client):
    job = finished(
        beaker_client, begin(beaker_client, task("trap 'exit 1' TERM; sleep 60 & wait", timeout=200_000_000))
    )
    assert job.status.canceled_code == 5
    job = finished(beaker_client, begin(beaker_client, task("echo x").with_env_var("TOKEN", secret="NOT_THERE")))
    assert job.status.status == BeakerWorkloadStatus.failed
    assert "NOT_THERE" in job.status.message


def test_logs_that_break_are_taken_up_again_with_repetitions(beaker_client, beaker_server):
    job = finished(beaker_client, begin(beaker_client, task("for one in 1 2 3 4 5 6 7; do echo line $one; done")))
    beaker_server.break_logs(after=3, replay=2)
    lines = said(beaker_client, job)
    assert list(dict.fromkeys(lines)) == [f"line {one}" for one in range(1, 8)]
    assert len(lines) > 7


def test_names_groups_and_refusals(beaker_client, beaker_server):
    workload = begin(beaker_client, task("true"))
    name = workload.experiment.name
    with pytest.raises(errors.BeakerExperimentConflict):
        beaker_client.experiment.create(spec=BeakerExperimentSpec(tasks=[task("true")]), name=name)
    assert beaker_client.workload.get(f"tester/{name}").experiment.id == workload.experiment.id
    group = beaker_client.group.create(f"group-{name}")
    beaker_client.group.update(group, add_experiment_ids=[workload.experiment.id])
    assert [one.full_name for one in beaker_client.group.list(name_or_description=name)] == [f"tester/group-{name}"]
    assert {"name": f"group-{name}", "experiments": [workload.experiment.id]} in beaker_server.state()["groups"]
    with pytest.raises(errors.BeakerWorkspaceNotFound):
        beaker_client.workspace.get("ai2/missing")
    with pytest.raises(errors.BeakerSecretNotFound):
        beaker_client.secret.get("NONE")
    with pytest.raises(errors.BeakerError, match="image"):
        beaker_client.experiment.create(
            spec=BeakerExperimentSpec(tasks=[BeakerTaskSpec.new("main", cluster="ai2/saturn")])
        )
    assert beaker_client.experiment.get_spec(workload).tasks[0].name == "main"


def test_faults_before_and_after(beaker_client, beaker_server):
    before = len(beaker_server.experiments())
    beaker_server.fail("CreateExperiment", status="LOST", when="after")
    with pytest.raises(requests.exceptions.ConnectionError):
        begin(beaker_client, task("true"))
    assert len(beaker_server.experiments()) == before + 1
    beaker_server.fail("CreateExperiment", status="503", message="out of order")
    with pytest.raises(requests.exceptions.HTTPError, match="out of order"):
        begin(beaker_client, task("true"))
    assert len(beaker_server.experiments()) == before + 1
    beaker_server.fail("GetWorkload")  # the client asks again
    begin(beaker_client, task("true"))


def test_another_token_is_refused(beaker_server, monkeypatch):
    monkeypatch.setenv("BEAKER_TOKEN", "wrong")
    with (
        Beaker.from_env(check_for_upgrades=False) as beaker_client,
        pytest.raises(grpc.RpcError, match="UNAUTHENTICATED"),
    ):
        beaker_client.user.get()
