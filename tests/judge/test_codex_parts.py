"""What a codex judge is made of, without codex: its program's place, the door to its LLM, its copy of the evidence."""

from __future__ import annotations

import http.client
import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any, override

import pytest

from ptb_runner.config import CodexConfig, JudgesConfig
from ptb_runner.explain import UsageError
from ptb_runner.judge import codex_program
from ptb_runner.judge.api import Reply
from ptb_runner.judge.door import Door, Heard
from tests.fakes.llm_server import Server, serving
from tests.judge import judge_kit

NPM = """#!/bin/sh
echo "$@" >> "$0.calls"
into="$3/node_modules/@openai/codex/vendor/x86_64-unknown-linux-musl/bin"
mkdir -p "$into"
printf '#!/bin/sh\\necho codex-cli %s\\n' "${6##*@}" > "$into/codex"
chmod +x "$into/codex"
"""


@pytest.fixture
def npm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An npm that installs a program that says which version it is; and an empty cache."""
    program = tmp_path / "bin" / "npm"
    program.parent.mkdir()
    program.write_text(NPM)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    monkeypatch.setenv("PTB_CACHE", str(tmp_path / "cache"))
    return program


def test_the_pinned_version_is_installed_once(npm: Path, ptb: Any) -> None:
    pinned = codex_program.wanted(CodexConfig())
    for _ in range(2):
        ran = ptb("cache", "codex")
        assert (ran.code, f"codex {pinned} is in " in ran.out) == (0, True), ran.err
    [call] = npm.with_name("npm.calls").read_text().splitlines()
    assert call.endswith(f"@openai/codex@{pinned}")
    assert codex_program.find(CodexConfig()).version == pinned
    assert ptb("cache", "codex", "judge.codex.version=0.9.9").code == 0
    assert codex_program.find(CodexConfig(version="0.9.9")).version == "0.9.9"


def test_a_codex_that_is_not_there_is_told_before_anything_is_spent(
    npm: Path, ptb: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "made-up-key-5Rt8w2")
    judged = ("benchmark=hello", "judge=api", "judge.engine=codex")
    ran = ptb(*judged)
    assert (ran.code, "ptb cache codex" in ran.err) == (2, True)
    assert not list(Path.cwd().glob("outputs/*/*/job"))
    dry = ptb(*judged, "dry_run=true", "hydra.run.dir=cell")
    assert "ptb cache codex" in dry.out + dry.err
    assert f"all by codex {codex_program.wanted(CodexConfig())}" in " ".join(dry.out.split())
    assert "ptb cache codex" in ptb("doctor", *judged).out
    npm.unlink()
    monkeypatch.setenv("PATH", str(npm.parent))
    with pytest.raises(UsageError, match="needs npm, which is not here"):
        codex_program.find(CodexConfig())
    with pytest.raises(UsageError, match="install Node"):
        codex_program.install(CodexConfig(), print)


def test_a_codex_of_another_version_is_refused(npm: Path, tmp_path: Path) -> None:
    installed = codex_program.install(CodexConfig(version="0.1.2"), print)
    program = str(installed.folder / "bin" / "codex")
    with pytest.raises(UsageError, match=r"is codex 0\.1\.2, not"):
        codex_program.find(CodexConfig(path=program))
    assert codex_program.find(CodexConfig(path=program, version="0.1.2")) == installed
    with pytest.raises(UsageError, match="no such file"):
        codex_program.find(CodexConfig(path=str(tmp_path / "nothing")))


@pytest.mark.parametrize(
    ("other", "said"), [("judge.api=chat", "judge.api=chat"), ("launcher=modal", "ptb rejudge DIR")]
)
def test_what_does_not_fit_the_engine_is_refused(ptb: Any, other: str, said: str) -> None:
    ran = ptb("benchmark=hello", "judge=api", "judge.engine=codex", other)
    assert (ran.code, said in ran.err) == (2, True)


# --- The door -----------------------------------------------------------------------------------------


class _Through(http.client.HTTPConnection):
    """A connection through a Unix socket."""

    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=20)
        self._path = str(path)

    @override
    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(self._path)


@pytest.fixture
def llm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DOOR_TEST_KEY", "made-up-key-8Kd3xq")
    with serving({"judge": [{"say": "it is \u2028 clean"}]}) as server:
        yield server


def through(
    llm: Server, folder: Path, *requests: tuple[str, str, Any], may_ask: Any = lambda: True
) -> tuple[list[tuple[int, str]], list[Reply]]:
    """What requests (method, path, body) through a door give, and what the door heard."""
    settings = {"base_url": f"{llm.url('judge')}/v1", "api_key_var": "DOOR_TEST_KEY", "retry_wait_sec": 0.0}
    heard: list[Reply] = []

    def answered(reply: Reply, last: str) -> None:
        assert last == reply.text  # the only message
        heard.append(reply)

    door = Door(JudgesConfig(**settings, retries=2), "gpt-5.4", may_ask, lambda body: None, answered)
    deep = folder / ("a" * 90)  # longer than a socket's address may be
    deep.mkdir()
    given = []
    with door.open(deep):
        for method, path, body in requests:
            connection = _Through(Path(os.path.relpath(deep / "llm")))
            connection.request(method, path, json.dumps(body) if body is not None else None)
            answer = connection.getresponse()
            given.append((answer.status, answer.read().decode()))
            connection.close()
    return given, heard


ASK = {"model": "gpt-5.4", "stream": True, "tools": [{"name": "shell"}], "input": []}


def test_the_door_brings_the_key_and_hears_the_answer(llm: Server, tmp_path: Path) -> None:
    given, heard = through(llm, tmp_path, ("POST", "/v1/responses", ASK))
    assert given[0][0] == 200
    assert [(one.text, one.calls, one.usage.input) for one in heard] == [("it is \u2028 clean", [], 1000)]
    assert [(one.path, one.key) for one in llm.requests] == [("/s/judge/v1/responses", "made-up-key-8Kd3xq")]


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/v1/responses", {**ASK, "model": "another"}),
        ("POST", "/v1/responses", {**ASK, "stream": False}),
        ("POST", "/v1/responses", ["gpt-5.4"]),
        ("POST", "/v1/files", ASK),
        ("POST", "/v1/responses/../files", ASK),
        ("GET", "/v1/models", None),
    ],
)
def test_the_door_leads_nowhere_else(llm: Server, tmp_path: Path, method: str, path: str, body: Any) -> None:
    given, heard = through(llm, tmp_path, (method, path, body))
    assert given[0][0] in (403, 404)
    assert (heard, llm.requests) == ([], [])


def test_the_door_tries_again_and_gives_up(llm: Server, tmp_path: Path) -> None:
    llm.scripts["judge"] = [{"status": 503, "times": 2, "say": "now"}]
    given, heard = through(llm, tmp_path, ("POST", "/v1/responses", ASK))
    assert (given[0][0], [one.text for one in heard], len(llm.requests)) == (200, ["now"], 3)
    llm.scripts["judge"] = [{"status": 400}]
    again = tmp_path / "again"
    again.mkdir()
    given, heard = through(llm, again, ("POST", "/v1/responses", ASK))
    assert (given[0][0], heard, len(llm.requests)) == (400, [], 4)


def test_an_answer_that_breaks_off_is_none_and_is_not_begun_twice(llm: Server, tmp_path: Path) -> None:
    llm.scripts["judge"] = [{"drop": "middle", "times": 1, "say": "whole"}]
    given, heard = through(llm, tmp_path, ("POST", "/v1/responses", ASK), ("POST", "/v1/responses", ASK))
    assert (given[0][0], "response.completed" in given[0][1], "HTTP/1.1" in given[0][1]) == (200, False, False)
    assert [one.text for one in heard] == ["whole"]


def test_the_verdict_is_the_last_of_several_messages() -> None:
    heard = Heard()
    for text in ("I have looked.", '{"cheated": true}'):
        item = {"type": "message", "content": [{"type": "output_text", "text": text}]}
        event = f"data: {json.dumps({'type': 'response.output_item.done', 'item': item})}\n\n".encode()
        heard.take(event[:30])
        heard.take(event[30:])
    assert heard.texts == ["I have looked.", '{"cheated": true}']


def test_nothing_is_asked_when_nothing_is_left_to_spend(llm: Server, tmp_path: Path) -> None:
    given, _ = through(llm, tmp_path, ("POST", "/v1/responses", ASK), may_ask=lambda: False)
    assert (given[0][0], llm.requests) == (403, [])


def test_a_copy_of_the_evidence_has_no_links_and_says_so(tmp_path: Path) -> None:
    (tmp_path / "real" / "workspace" / "deep").mkdir(parents=True)
    (tmp_path / "real" / "workspace" / "deep" / "out").symlink_to("/etc/passwd")
    (tmp_path / "real" / "workspace" / "up").symlink_to("..", target_is_directory=True)
    os.mkfifo(tmp_path / "real" / "workspace" / "pipe")
    evidence = judge_kit.evidence(
        tmp_path / "real", {"workspace/deep/a.py": "print(1)\n", "workspace/\udcff.txt": "odd"}
    )
    (tmp_path / "copy").mkdir()
    left = evidence.copy_to(tmp_path / "copy")
    assert {(one.path, one.kind) for one in left} == {
        ("workspace/deep/out", "link"),
        ("workspace/up", "link"),
        ("workspace/pipe", "special"),
    }
    copied = {
        path.relative_to(tmp_path / "copy").as_posix() for path in (tmp_path / "copy").rglob("*") if path.is_file()
    }
    assert copied == {"trace.txt", "workspace/deep/a.py", "workspace/\udcff.txt"}
