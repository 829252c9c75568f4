"""A registry of tasks against a served model, in bubblewrap; in podman: tests/podman/test_served.py."""

from __future__ import annotations

import pytest

from tests.served_kit import check_served_dataset


@pytest.mark.serve
def test_a_registry_of_tasks_is_run_against_a_served_model(ptb, tmp_path, monkeypatch):
    check_served_dataset(ptb, tmp_path, monkeypatch, ())
