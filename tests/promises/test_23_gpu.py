"""Promise 23: what GPU a trial really had is recorded, and another one makes its result not comparable."""

from __future__ import annotations

import pytest

from tests.modal_kit import ADDITION, ON_GPU, nothing_is_left
from tests.run_kit import only_cell

pytestmark = pytest.mark.modal


def test_another_gpu_makes_a_result_not_comparable(ptb, modal_server):
    modal_server.show_gpus(**{"H100!": "NVIDIA H200"})
    ptb(*ADDITION, *ON_GPU, "backend.keep_model=never")
    found = only_cell().result["provenance"]
    assert found["comparable"] is False
    assert "ran on NVIDIA H200, the benchmark names H100 (1 of 1 trials)" in found["not_comparable_because"]
    assert nothing_is_left(modal_server)
