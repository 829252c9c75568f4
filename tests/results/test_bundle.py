"""Bundles: one file with what a sweep came to, without secrets and weights, safe to read whoever made it."""

from __future__ import annotations

import gzip
import io
import json
import shutil
import tarfile
from pathlib import Path

import pytest

from ptb_runner.cell import SCHEMA_VERSION
from ptb_runner.cli import main
from ptb_runner.explain import UsageError
from ptb_runner.results.bundle import KIND, MANIFEST, opened, pack
from ptb_runner.results.rows import read_rows
from ptb_runner.results.scrub import Scrubber
from tests.results.export_kit import Trained, make_sweep

CANARY = "canary-of-a-secret-0123456789"


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    return make_sweep(tmp_path / "sweep", Trained(attempts=2), Trained(model="qwen3-1.7b", flagged="contamination"))


def _names(bundle: Path) -> list[str]:
    with tarfile.open(bundle) as tar:
        return tar.getnames()


def _everything(bundle: Path) -> bytes:
    return gzip.decompress(bundle.read_bytes())


def test_a_bundle_reads_as_the_sweep_does(sweep: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = read_rows(sweep)
    assert main(["export", str(sweep), "--bundle"]) == 0
    bundle = tmp_path / "sweep.ptb.tar.gz"
    assert f"next: ptb report {bundle}" in capsys.readouterr().out
    shutil.rmtree(sweep)
    rows = read_rows(bundle)
    assert rows == before
    for row in rows:
        for trial in row.trials:
            assert (opened(bundle) / row.folder / trial["trial_dir"] / "result.json").is_file()
    assert main(["export", str(bundle), "--format", "posttrainbench", "--to", str(tmp_path / "results")]) == 0
    assert main(["report", str(bundle)]) == 0
    assert (tmp_path / "sweep.html").is_file()
    assert main(["collect", str(bundle)]) == 2


def test_the_same_folder_gives_the_same_bytes(sweep: Path, tmp_path: Path) -> None:
    pack(sweep, tmp_path / "one.tar.gz")
    copy = shutil.copytree(sweep, tmp_path / "elsewhere" / "sweep", copy_function=shutil.copy)
    pack(copy, tmp_path / "two.tar.gz")
    assert (tmp_path / "one.tar.gz").read_bytes() == (tmp_path / "two.tar.gz").read_bytes()


def test_weights_go_along_only_when_asked(sweep: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", str(sweep), "--bundle", "--to", str(tmp_path / "small.tar.gz")]) == 0
    assert "left out: 6 files" in capsys.readouterr().out
    assert not any("handoff" in name or name.endswith(".safetensors") for name in _names(tmp_path / "small.tar.gz"))
    assert main(["export", str(sweep), "--bundle", "--with-models", "--to", str(tmp_path / "large.tar.gz")]) == 0
    assert "0/handoff/gsm8k__001/final_model/model.safetensors" in _names(tmp_path / "large.tar.gz")


def test_links_and_large_files_stay_out_and_are_listed(sweep: Path, tmp_path: Path) -> None:
    (sweep / "0" / "link").symlink_to("/etc/passwd")
    (sweep / "0" / "folder").symlink_to("/etc")
    (sweep / "0" / "large.txt").write_bytes(b"x" * (2**20 + 1))
    pack(sweep, tmp_path / "b.tar.gz", max_file_mb=1)
    assert not {"0/link", "0/folder", "0/large.txt"} & set(_names(tmp_path / "b.tar.gz"))
    manifest = json.loads((opened(tmp_path / "b.tar.gz") / MANIFEST).read_text())
    reasons = {one["path"]: one["reason"] for one in manifest["left_out"]}
    assert reasons["0/large.txt"] == "larger than 1 MiB"
    assert reasons["0/link"] == reasons["0/folder"] == "a link, or no plain file"


def test_secrets_are_taken_out_by_value(
    sweep: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("EXPORT_TEST_KEY", CANARY)  # the cells name it
    monkeypatch.setenv("SOME_OTHER_TOKEN", f"{CANARY[::-1]}")  # nobody names it, but that is how secrets are called
    trial = sweep / "0" / "job" / "gsm8k__001"
    (trial / "agent" / "out.txt").write_text(f"I said {CANARY} and {CANARY[::-1]}\n")
    (trial / "agent" / "cache.db").write_bytes(b"\0\1" + CANARY.encode() + b"\2")
    assert main(["export", str(sweep), "--bundle"]) == 0
    content = _everything(tmp_path / "sweep.ptb.tar.gz")
    assert CANARY.encode() not in content
    assert CANARY[::-1].encode() not in content
    assert b"I said ${EXPORT_TEST_KEY} and ${SOME_OTHER_TOKEN}" in content
    assert "secrets taken out of 0/job/gsm8k__001/agent/out.txt" in capsys.readouterr().out


@pytest.mark.parametrize(
    "text",
    [
        '{{"OPENAI_API_KEY": "{0}"}}',
        '{{\\"api_key\\": \\"{0}\\"}}',
        "export HF_TOKEN={0}",
        "anthropic_api_key: {0}",
        "Authorization: Bearer {0}",
        'client_secret="{0}"',
        "password = '{0}'",
    ],
)
def test_secrets_are_taken_out_by_the_name_of_their_key(text: str) -> None:
    scrubbed = Scrubber(environment={}).scrubbed(text.format(CANARY).encode()).decode()
    assert CANARY not in scrubbed
    assert scrubbed == text.format("[redacted]")


@pytest.mark.parametrize(
    "secret",
    [
        "sk-ant-" + "a1B2" * 8,
        "hf_" + "abcdefghij" * 3,
        "ghp_" + "a1b2c3d4e5f6" * 3,
        "AKIA" + "ABCDEFGH12345678",
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.abc",
        "-----BEGIN PRIVATE KEY-----\nMIIB\n-----END PRIVATE KEY-----",
    ],
)
def test_secrets_are_taken_out_by_their_form(secret: str) -> None:
    assert Scrubber(environment={}).scrubbed(f"it is {secret} there".encode()) == b"it is [redacted] there"


@pytest.mark.parametrize(
    "text",
    [
        '{"n_input_tokens": 12345678, "max_tokens": "16000000"}',
        '{"eos_token": "<|endoftext|>", "tokenizer_class": "Qwen2Tokenizer"}',
        "env_vars:\n- ANTHROPIC_API_KEY\n- OPENAI_API_KEY\n",
        'OPENAI_API_KEY: ${oc.env:OPENAI_API_KEY}\napiKey: "{env:ZAI_API_KEY}"',
        'client = OpenAI(api_key=os.environ["OPENAI_API_KEY"])',
        "the key: a good learning rate",
    ],
)
def test_what_only_speaks_of_secrets_stays(text: str) -> None:
    assert Scrubber(environment={}).scrubbed(text.encode()) == text.encode()


def test_only_an_earlier_bundle_of_the_folder_is_replaced(sweep: Path, tmp_path: Path) -> None:
    own = tmp_path / "own.tar.gz"
    own.write_bytes(b"my thesis")
    assert main(["export", str(sweep), "--bundle", "--to", str(own)]) == 2
    assert own.read_bytes() == b"my thesis"
    assert main(["export", str(sweep), "--bundle", "--to", str(sweep / "b.tar.gz")]) == 2
    for _ in range(2):
        assert main(["export", str(sweep), "--bundle", "--to", str(tmp_path / "b.tar.gz")]) == 0
    other = make_sweep(tmp_path / "other", Trained())
    assert main(["export", str(other), "--bundle", "--to", str(tmp_path / "b.tar.gz")]) == 2


def _crafted(path: Path, *members: tuple[tarfile.TarInfo, bytes]) -> Path:
    manifest = tarfile.TarInfo(MANIFEST)
    content = json.dumps({"kind": KIND, "schema_version": SCHEMA_VERSION, "name": "x"}).encode()
    with tarfile.open(path, "w:gz") as tar:
        for member, data in ((manifest, content), *members):
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return path


def _member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.linkname = kind, link
    return member


@pytest.mark.parametrize(
    "members",
    [
        [(_member("../escaped"), b"x")],
        [(_member("a/../../escaped"), b"x")],
        [(_member("/tmp/escaped-by-bundle"), b"x")],
        [(_member("link", tarfile.SYMTYPE, "/tmp"), b""), (_member("link/escaped-by-bundle"), b"x")],
        [(_member("hard", tarfile.LNKTYPE, "/etc/passwd"), b"")],
        [(_member("pipe", tarfile.FIFOTYPE), b"")],
        [(_member("twice"), b"1"), (_member("twice"), b"2")],
    ],
)
def test_a_hostile_bundle_writes_nothing_outside(tmp_path: Path, members: list[tuple[tarfile.TarInfo, bytes]]) -> None:
    bundle = _crafted(tmp_path / "b.tar.gz", *members)
    with pytest.raises(UsageError):
        opened(bundle)
    assert not (tmp_path / "escaped").exists()
    assert not Path("/tmp/escaped-by-bundle").exists()


@pytest.mark.parametrize("damage", ["text", "cut", "no manifest", "newer"])
def test_a_file_that_is_no_bundle_is_refused_in_a_line(
    sweep: Path, tmp_path: Path, damage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    bundle = tmp_path / "b.tar.gz"
    pack(sweep, bundle)
    if damage == "text":
        bundle.write_text("hello")
    elif damage == "cut":
        bundle.write_bytes(bundle.read_bytes()[:2000])
    elif damage == "no manifest":
        with tarfile.open(bundle, "w:gz") as tar:
            tar.add(sweep / "sweep.yaml", "sweep.yaml")
    else:
        manifest = json.dumps({"kind": KIND, "schema_version": 99}).encode()
        with tarfile.open(bundle, "w:gz") as tar:
            member = tarfile.TarInfo(MANIFEST)
            member.size = len(manifest)
            tar.addfile(member, io.BytesIO(manifest))
    assert main(["export", str(bundle), "--format", "csv", "--to", "-"]) == 2
    assert len(capsys.readouterr().err.strip().splitlines()) <= 2
