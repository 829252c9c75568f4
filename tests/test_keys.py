"""Keys: each phase gets exactly those that it needs, from the environment, a .env file or a subscription's login."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from ptb_runner.agent import login
from tests.run_kit import TASK_TOML, agent, make_task, only_cell

# What somebody who runs many things has exported. Each value is found if it goes where it should not.
HOST = (
    *("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "GEMINI_API_KEY", "HOSTED_VLLM_API_KEY", "HF_TOKEN", "GRADER_KEY"),
    *("CLAUDE_CODE_OAUTH_TOKEN", "CODEX_API_KEY", "GOOGLE_API_KEY", "ANTHROPIC_AUTH_TOKEN", "ANTHROPIC_BASE_URL"),
    *("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_BEARER_TOKEN_BEDROCK", "MODAL_TOKEN_SECRET", "BEAKER_TOKEN"),
    *("OPENAI_BASE_URL", "GOOGLE_GEMINI_BASE_URL", "CLAUDE_CODE_MAX_OUTPUT_TOKENS", "MAX_THINKING_TOKENS"),
    *("CLAUDE_CODE_EFFORT_LEVEL", "ANTHROPIC_MODEL", "CODEX_FORCE_AUTH_JSON", "OPENROUTER_API_KEY", "GITHUB_TOKEN"),
)
SANDBOX = {"HOME", "LANG", "PATH", "PTB_SEED", "PWD", "PYTHONDONTWRITEBYTECODE", "SHLVL", "TERM", "TMPDIR", "USER", "_"}
# Beside the sandbox's own: what each CLI is started with, after conf/agent/ and Harbor's class.
STARTED_WITH = {
    "claude-code": {
        *("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "ANTHROPIC_MODEL", "BASH_MAX_TIMEOUT_MS", "CLAUDE_CONFIG_DIR"),
        *("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "IS_SANDBOX"),
    },
    "codex": {"OPENAI_API_KEY", "CODEX_API_KEY", "CODEX_HOME"},
    "gemini-cli": {"GEMINI_API_KEY", "GEMINI_CLI_TRUST_WORKSPACE", "GEMINI_CLI_NO_RELAUNCH"},
    "opencode": {
        *("ANTHROPIC_API_KEY", "OPENCODE_DISABLE_AUTOUPDATE", "OPENCODE_FAKE_VCS", "XDG_DATA_HOME", "XDG_STATE_HOME"),
    },
}
COMMANDS = {"claude-code": "claude", "codex": "codex", "gemini-cli": "gemini", "opencode": "opencode"}
OWN_KEY = {"claude-code": "ANTHROPIC_API_KEY", "codex": "OPENAI_API_KEY", "gemini-cli": "GEMINI_API_KEY"}
OWN_KEY |= {"opencode": "ANTHROPIC_API_KEY"}


def canary(name: str) -> str:
    return f"canary-{name.lower()}-8Zt3qVw5Ym"


def digest(value: str) -> str:
    return hashlib.sha256(value.encode()).hexdigest() + "  -"


@pytest.fixture(autouse=True)
def host(monkeypatch, tmp_path):
    for name in HOST:
        monkeypatch.setenv(name, canary(name))
    monkeypatch.setenv("CODEX_HOME", str(tmp_path / "no-codex-here"))


@pytest.fixture
def clis(tmp_path) -> list[str]:
    """Overrides for a sandbox in which every CLI only tells how it was started."""
    (tmp_path / "clis" / "bin").mkdir(parents=True)
    for command in COMMANDS.values():
        shutil.copy(Path(__file__).parent / "fakes" / "dumping_cli.sh", tmp_path / "clis" / "bin" / command)
    return [f"backend.read_only_paths=[{tmp_path / 'clis'}]", "agent.version=9.9.9", "benchmark.network=public"]


def variables(dump: Path) -> dict[str, str]:
    pairs = [line.partition("=") for line in dump.read_text().splitlines()]
    return {name: value for name, _, value in pairs}


def started_with(cell) -> dict[str, str]:
    """Names and checksums."""
    (dump,) = cell.folder.glob("job/*__*/agent/environ")
    return {name: value for name, value in variables(dump).items() if name not in SANDBOX}


def canaries(values: dict[str, str]) -> set[str]:
    return {name for name in HOST if canary(name) in values.values()}


@pytest.mark.parametrize("name", STARTED_WITH)
def test_a_cli_is_started_with_its_own_key_and_nothing_else_of_the_hosts(name, ptb, clis):
    ran = ptb("benchmark=hello", f"agent={name}", *clis)
    cell = only_cell()
    assert ran.code == 0, ran.out + ran.err + cell.log
    given = started_with(cell)
    assert set(given) == STARTED_WITH[name]
    assert {one for one in HOST if digest(canary(one)) in given.values()} == {OWN_KEY[name]}


def test_each_phase_gets_the_keys_that_are_named_for_it(ptb, tmp_path):
    dump = "env > /logs/{}/environ"
    toml = TASK_TOML.replace("[agent]\n", '[environment.env]\nPTB_SEED = "0"\n[agent]\n', 1)
    task = make_task(tmp_path / "task", f"{dump.format('verifier')}; echo 1 > /logs/verifier/reward.txt", toml)
    ran = ptb(
        *("benchmark=task", f"benchmark.path={task}", "benchmark.verifier_env_vars=[GRADER_KEY]", "model=none"),
        *agent("Scripted", command=f"{dump.format('agent')}; printf ok > answer.txt"),
        *("agent.env_vars=[GEMINI_API_KEY]", "agent.env.MODE=fast"),
    )
    cell = only_cell()
    assert ran.code == 0, ran.out + ran.err + cell.log
    trial = next(cell.folder.glob("job/*__*"))
    for phase, own in (("agent", {"GEMINI_API_KEY", "MODE"}), ("verifier", {"GRADER_KEY"})):
        given = variables(trial / phase / "environ")
        assert set(given) - SANDBOX == own
        assert canaries(given) == set()


def test_a_post_training_benchmarks_keys(ptb):
    """The grader's key goes to both sandboxes, the hub's to the agent's, the verifier's own only to the verifier."""
    dump = "env > /logs/agent/environ; cp -r base_model final_model"
    ran = ptb(
        *("benchmark=addition", *agent("Scripted", command=dump), "benchmark.env_vars=[GRADER_KEY]"),
        *("model.env_vars=[HF_TOKEN]", "benchmark.verifier_env_vars=[GITHUB_TOKEN]"),
    )
    cell = only_cell()
    assert ran.code == 0, ran.out + ran.err + cell.log
    trial = next(cell.folder.glob("job/*__*"))
    given = variables(trial / "agent" / "environ")
    assert set(given) - SANDBOX == {"GRADER_KEY", "HF_TOKEN"}
    task = (cell.folder / "task" / "task.toml").read_text()
    assert "HF_TOKEN" not in task[task.index("[verifier.env]") :]


def test_a_subscription_of_claude_code(ptb, clis):
    ran = ptb("benchmark=hello", "agent=claude-code", "agent.auth=subscription", *clis)
    cell = only_cell()
    assert ran.code == 0, ran.out + ran.err + cell.log
    given = started_with(cell)
    assert given["CLAUDE_CODE_OAUTH_TOKEN"] == digest(canary("CLAUDE_CODE_OAUTH_TOKEN"))
    assert "ANTHROPIC_API_KEY" not in given


# --- Codex's login ------------------------------------------------------------------------------------

NOW = datetime.now(UTC)


def content(stamp: str, at: datetime, account: str = "acct-1") -> dict:
    tokens = {name: f"canary-{name}-{stamp}-5Kd9wQ" for name in ("id_token", "access_token", "refresh_token")}
    return {"OPENAI_API_KEY": None, "tokens": {**tokens, "account_id": account}, "last_refresh": at.isoformat()}


@pytest.fixture
def file(tmp_path, monkeypatch) -> Path:
    path = tmp_path / "login" / "auth.json"
    path.parent.mkdir()
    path.write_text(json.dumps(content("old", NOW - timedelta(days=1))))
    path.chmod(0o600)
    monkeypatch.setenv("CODEX_AUTH_JSON_PATH", str(path))
    return path


def test_a_subscription_of_codex_whose_tokens_are_renewed_in_the_sandbox(ptb, clis, file, tmp_path):
    renewed = content("new", NOW)
    (tmp_path / "clis" / "renewed.json").write_text(json.dumps(renewed))
    renew = f"agent.env.PTB_TEST_RENEW={tmp_path / 'clis' / 'renewed.json'}"
    ran = ptb("benchmark=hello", "agent=codex", "agent.auth=subscription", renew, *clis)
    cell = only_cell()
    assert ran.code == 0, ran.out + ran.err + cell.log
    assert json.loads(file.read_text()) == renewed
    assert file.stat().st_mode & 0o777 == 0o600
    given = started_with(cell)
    assert given["OPENAI_API_KEY"] == given["CODEX_API_KEY"] == digest("")
    seen = (next(cell.folder.glob("job/*__*/agent/login.json"))).read_text()
    assert "acct-1" in seen  # it was there, and its tokens are in no file of the run
    for path in cell.folder.rglob("*"):
        if path.is_file():
            assert b"5Kd9wQ" not in path.read_bytes(), path


def bring_back(file: Path, text: str) -> str:
    came = file.parents[1] / "came.json"
    came.write_text(text)
    return login.bring_back(file, came)


BAD = {
    "older": content("new", NOW - timedelta(days=2)),
    "from the future": content("new", NOW + timedelta(days=2)),
    "another account": content("new", NOW, "acct-2"),
    "no login": {"last_refresh": NOW.isoformat()},
    "a list": [1, 2],
}


@pytest.mark.parametrize("what", [*BAD, "no json", "too large"])
def test_nothing_but_a_renewal_comes_back(what, file):
    before = file.read_text()
    texts = {"no json": "{", "too large": json.dumps(content("x" * 70_000, NOW))}
    assert bring_back(file, texts.get(what) or json.dumps(BAD[what])).startswith("left alone")
    assert file.read_text() == before
    assert {path.name for path in file.parent.iterdir()} <= {"auth.json", "auth.json.lock"}


def test_of_two_renewals_the_newest_stays(file):
    newest, middle = content("newest", NOW), content("middle", NOW - timedelta(hours=1))
    assert bring_back(file, json.dumps(newest)) == "renewed"
    assert bring_back(file, json.dumps(middle)).startswith("left alone")
    assert json.loads(file.read_text()) == newest


def test_a_missing_login_is_told_before_anything_starts(ptb, monkeypatch, tmp_path):
    monkeypatch.setenv("CODEX_AUTH_JSON_PATH", str(tmp_path / "nowhere.json"))
    ran = ptb("benchmark=hello", "agent=codex", "agent.auth=subscription")
    assert ran.code == 2
    assert "nowhere.json does not exist" in ran.err
    assert "codex login" in ran.err
    monkeypatch.delenv("CLAUDE_CODE_OAUTH_TOKEN")
    ran = ptb("benchmark=hello", "agent=claude-code", "agent.auth=subscription")
    assert (ran.code, "claude setup-token" in ran.err) == (2, True)
    ran = ptb("benchmark=hello", "agent=gemini-cli", "agent.auth=subscription")
    assert (ran.code, "claude-code, codex" in ran.err) == (2, True)


def test_a_class_that_takes_no_endpoint_is_told(ptb):
    ran = ptb("benchmark=hello", *agent("Scripted"), "agent.base_url=http://127.0.0.1:1/v1")
    assert ran.code == 2
    assert "tests.agents:Scripted takes none" in ran.err


def test_an_agent_that_could_not_reach_its_llm_is_refused(ptb):
    ran = ptb("benchmark=hello", "agent=codex")
    assert ran.code == 2
    assert "agent=codex could not reach its LLM\n  type benchmark.network=public" in ran.err
    assert not Path("outputs").exists()


# --- .env ---------------------------------------------------------------------------------------------


def test_keys_from_an_env_file(ptb_process, tmp_path, monkeypatch):
    monkeypatch.delenv("GEMINI_API_KEY")
    (tmp_path / ".env").write_text("export GEMINI_API_KEY='from-the-file-4Hs8'\nOPENAI_API_KEY=not-this-4Hs8\n# note\n")
    check = '[[ $GEMINI_API_KEY == from-the-file-* ]] && printf ok > answer.txt && echo "$GEMINI_API_KEY"'
    custom = agent("Scripted", command=check)
    ran = ptb_process("benchmark=hello", *custom, "agent.env_vars=[GEMINI_API_KEY]", cwd=tmp_path)
    assert ran.code == 0, ran.out + ran.err
    files = [path for path in (tmp_path / "outputs").rglob("*") if path.is_file()]
    assert all(b"4Hs8" not in path.read_bytes() for path in files)
    assert os.environ["OPENAI_API_KEY"] == canary("OPENAI_API_KEY")


def test_an_env_file_overrides_nothing_and_a_named_one_must_be_there(ptb, tmp_path, monkeypatch):
    named = tmp_path / "my.env"
    named.write_text("GEMINI_API_KEY=other\nNEW_ONE_OF_A_TEST=1\n")
    monkeypatch.setenv("PTB_ENV_FILE", str(named))
    monkeypatch.setenv("NEW_ONE_OF_A_TEST", "")  # so that it is unset afterwards
    monkeypatch.delenv("NEW_ONE_OF_A_TEST")
    assert ptb("--version").code == 0
    assert os.environ["GEMINI_API_KEY"] == canary("GEMINI_API_KEY")
    assert os.environ["NEW_ONE_OF_A_TEST"] == "1"
    monkeypatch.setenv("PTB_ENV_FILE", str(tmp_path / "none.env"))
    ran = ptb("--version")
    assert (ran.code, "none.env: no such file" in ran.err) == (2, True)


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("localhost:8000", "no http(s) URL"),
        ("http://me:secret-word@host/v1", "more than an address"),
        ("http://[/v1", "no http(s) URL"),
    ],
)
def test_an_endpoint_is_checked(url, said, ptb):
    ran = ptb("benchmark=hello", "agent=codex", f"agent.base_url='{url}'")
    assert ran.code == 2
    assert said in ran.err
    assert "secret-word" not in ran.err
