"""preflight.probe_keys: a key that is plainly bad is found before a sandbox is made."""

from __future__ import annotations

import pytest

from ptb_runner import probe
from tests.fakes.llm_server import serving
from tests.run_kit import QUICK, agent

GOOD, BAD = "made-up-good-7Qx4vZr1Lw9s", "made-up-bad-7Qx4vZr1Lw9s"


@pytest.fixture
def llm():
    with serving({}) as server:
        server.keys = {GOOD}
        yield server


@pytest.mark.parametrize(
    ("name", "variable"),
    [("claude-code", "ANTHROPIC_API_KEY"), ("codex", "OPENAI_API_KEY"), ("gemini-cli", "GEMINI_API_KEY")],
)
def test_a_bad_key_is_refused_by_one_call_and_not_shown(name, variable, ptb, llm, monkeypatch, tmp_path):
    monkeypatch.setenv(variable, BAD)
    wanted = ["benchmark=hello", "benchmark.network=public", f"agent={name}", "preflight.probe_keys=true"]
    for place in ([f"agent.base_url={llm.url('x')}/v1"], []):
        llm.requests.clear()
        monkeypatch.setitem(probe.MODELS, variable, f"{llm.url('x')}/v1/models")
        ran = ptb(*wanted, *place)
        assert ran.code == 2
        assert f"{variable}: 127.0.0.1:{llm.server_port} refuses this key: HTTP 401 invalid key" in ran.err
        assert BAD not in ran.err + ran.out
        assert [request.key for request in llm.requests] == [BAD]
    assert not list((tmp_path / "cwd").glob("outputs/*/*/job"))


def test_a_bad_token_of_the_hub_is_refused(ptb, llm, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", BAD)
    monkeypatch.setenv("HF_ENDPOINT", llm.url("hub"))
    ran = ptb(*QUICK, *agent("Honest"), "agent.env_vars=[HF_TOKEN]", "preflight.probe_keys=true")
    assert ran.code == 2
    assert "HF_TOKEN: 127.0.0.1" in ran.err
    assert [request.path for request in llm.requests] == ["/s/hub/api/whoami-v2"]


def test_good_keys_and_silent_servers_do_not_stop_a_run(ptb, llm, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", GOOD)
    monkeypatch.setitem(probe.MODELS, "OPENAI_API_KEY", f"{llm.url('x')}/v1/models")
    wanted = [*QUICK, *agent("Honest"), "agent.env_vars=[OPENAI_API_KEY]", "preflight.probe_keys=true"]
    assert ptb(*wanted).code == 0
    assert len(llm.requests) == 1
    for url in ("http://127.0.0.1:9/v1/models", f"{llm.url('x')}/nothing"):
        monkeypatch.setitem(probe.MODELS, "OPENAI_API_KEY", url)
        assert ptb(*wanted).code == 0
