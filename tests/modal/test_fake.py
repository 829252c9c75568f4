"""The fake itself, by the real client: what other tests rely on."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import pytest

pytestmark = pytest.mark.modal

SLEEP = ("sh", "-c", "sleep infinity")


@pytest.fixture
def app(modal_server) -> Any:
    import modal

    return modal.App.lookup("fake-tests", create_if_missing=True)


@pytest.fixture
def sandbox(app) -> Iterator[Any]:
    import modal

    made = modal.Sandbox.create(*SLEEP, app=app, image=image(), name=f"s-{uuid.uuid4().hex[:8]}", tags={"a": "b"})
    yield made
    made.terminate()
    made.wait(raise_on_termination=False)


def image() -> Any:
    import modal

    return modal.Image.from_registry("python:3.12-slim").run_commands("echo built > /stamp")


def said(sandbox: Any, command: str) -> tuple[str, str, int]:
    process = sandbox.exec("bash", "-c", command)
    return process.stdout.read(), process.stderr.read(), process.wait()


def test_a_sandbox_runs_commands_in_its_image(sandbox):
    assert said(sandbox, "cat /stamp; echo no >&2; exit 3") == ("built\n", "no\n", 3)
    assert said(sandbox, "echo changed > /usr/bin/own && cat /usr/bin/own")[0] == "changed\n"
    sandbox.filesystem.write_text("words", "/deep/file")
    assert said(sandbox, "cat /deep/file")[0] == "words"


def test_a_repeated_create_makes_one(app, modal_server):
    """The answer is lost, the client asks again with the same key."""
    import modal

    name = f"s-{uuid.uuid4().hex[:8]}"
    before = modal_server.calls("SandboxCreateV2")
    modal_server.fail("SandboxCreateV2", when="after")
    made = modal.Sandbox.create(*SLEEP, app=app, image=image(), name=name)
    try:
        assert modal_server.calls("SandboxCreateV2") == before + 2
        assert [one["id"] for one in modal_server.sandboxes() if one["name"] == name] == [made.object_id]
    finally:
        made.terminate()


def test_a_volume_shows_what_was_committed(app, modal_server, tmp_path):
    import modal

    name = f"v-{uuid.uuid4().hex[:8]}"
    volume = modal.Volume.from_name(name, create_if_missing=True, version=2)
    writer = modal.Sandbox.create(*SLEEP, app=app, image=image(), volumes={"/data": volume})
    assert said(writer, "mkdir /data/deep && echo kept > /data/deep/file")[2] == 0
    writer.terminate()
    writer.wait(raise_on_termination=False)
    reader = modal.Sandbox.create(*SLEEP, app=app, image=image(), volumes={"/data": volume.read_only()})
    assert said(reader, "cat /data/deep/file")[0] == "kept\n"
    assert said(reader, "echo more > /data/deep/file")[2] == 1
    reader.terminate()
    assert b"".join(volume.read_file("deep/file")) == b"kept\n"
    modal.Volume.objects.delete(name)
    assert name not in modal_server.volumes()


def test_the_provider_may_end_a_sandbox(app, modal_server):
    import modal

    made = modal.Sandbox.create(*SLEEP, app=app, image=image())
    said(made, "echo KERNEL_OOM_KILL 137 > /__modal/end; sleep 60")
    made.wait()
    assert made.poll() == 137


def test_a_gpu_that_was_asked_for_is_shown(app, modal_server):
    import modal

    modal_server.show_gpus(**{"H100!": "NVIDIA H100 80GB HBM3"})
    made = modal.Sandbox.create(*SLEEP, app=app, image=image(), gpu="H100!:2")
    assert said(made, "nvidia-smi")[0] == "NVIDIA H100 80GB HBM3\n" * 2
    made.terminate()


def test_a_build_that_fails_says_why(app):
    import modal

    broken = modal.Image.from_registry("python:3.12-slim").run_commands(f"echo so it ends {uuid.uuid4()} && exit 7")
    with pytest.raises(modal.exception.Error, match=r"exit code 7"):
        modal.Sandbox.create(*SLEEP, app=app, image=broken)
