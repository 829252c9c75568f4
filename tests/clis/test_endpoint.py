"""agent.base_url: a model that is served here, under a name and with a key of one's own, or with none."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest

from tests.clis.clis_kit import in_bubblewrap, secret, talking_to
from tests.run_kit import only_cell

pytestmark = pytest.mark.agents

SCRIPT = [{"shell": "printf ok > answer.txt"}, {"say": "It is done."}]


@pytest.mark.parametrize("key", ["HOSTED_VLLM_API_KEY", ""])
@pytest.mark.parametrize("agent", ["claude-code", "codex", "opencode"])
def test_a_served_model(agent, key, ptb, llm):
    llm.scripts["served"] = SCRIPT
    llm.keys = {secret(key)} if key else None
    own = ["agent.model=hosted_vllm/my-model", f"agent.env_vars=[{key}]"]
    ran = ptb("benchmark=hello", *talking_to(llm, "served", agent), *in_bubblewrap(), *own)
    cell = only_cell()
    assert ran.code == 0, ran.out + ran.err + cell.log
    asked = llm.of("served")
    assert {request.body["model"] for request in asked} == {"my-model"}
    if key:
        assert {request.key for request in asked} == {secret(key)}


def test_codex_with_a_subscription_sends_its_token_and_no_key(ptb, llm, tmp_path, monkeypatch):
    llm.scripts["served"] = SCRIPT
    tokens = {"id_token": id_token(), "access_token": secret("access"), "refresh_token": secret("refresh")}
    login = {"auth_mode": "chatgpt", "OPENAI_API_KEY": None, "tokens": {**tokens, "account_id": "acct-1"}}
    file = tmp_path / "auth.json"
    file.write_text(json.dumps({**login, "last_refresh": datetime.now(UTC).isoformat()}))
    monkeypatch.setenv("CODEX_AUTH_JSON_PATH", str(file))
    before = file.read_text()
    plain = "agent.options.config={features:{enable_request_compression:false}}"  # else with zstd
    own = ("agent.auth=subscription", plain)
    ran = ptb("benchmark=hello", *talking_to(llm, "served", "codex"), *in_bubblewrap(), *own)
    cell = only_cell()
    assert ran.code == 0, ran.out + ran.err + cell.log
    assert {request.key for request in llm.of("served")} == {secret("access")}
    assert file.read_text() == before
    assert all(secret("access").encode() not in path.read_bytes() for path in cell.folder.rglob("*") if path.is_file())


def id_token() -> str:
    """A token as a login has one: two parts that tell the account, and a signature that nobody looks at."""
    from base64 import urlsafe_b64encode

    claims = {"email": "me@example.com", "exp": 4102444800, "https://api.openai.com/auth": {"chatgpt_plan_type": "pro"}}
    parts = [{"alg": "none", "typ": "JWT"}, claims, {"signature": "made-up-signature-9Rk2"}]
    return ".".join(urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in parts)
