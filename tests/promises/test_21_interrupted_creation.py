"""Promise 21: interrupting while a sandbox is being made leaves none that is paid for."""

from __future__ import annotations

import signal

import pytest

from tests.modal_kit import MODAL, nothing_is_left, start, wait_until
from tests.run_kit import agent

pytestmark = pytest.mark.modal


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_slow_creation_that_is_interrupted(tmp_path, modal_server, number):
    before = modal_server.calls("SandboxCreateV2")
    modal_server.fail("SandboxCreateV2", status="OK", delay_sec=3, times=-1)
    process, cell = start(tmp_path, "benchmark=addition", "model=nano", *MODAL, *agent("Honest"), "attempts=2")
    wait_until(lambda: modal_server.calls("SandboxCreateV2") > before)
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, out + err + cell.log
    assert nothing_is_left(modal_server), out + err + cell.log
    assert set(cell.outcomes) <= {"cancelled"}
