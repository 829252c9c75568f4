"""Files into and out of a sandbox whose agent means harm."""

import asyncio
import io
import os
import tarfile
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from ptb_runner.sandbox import environment, jobs
from ptb_runner.sandbox.bubblewrap import BubblewrapEnvironment
from ptb_runner.sandbox.transfer import PipeReader, Refused, unpack, unpack_file


def tree(folder: Path) -> dict[str, str]:
    """Relative path -> content, link target, or 'dir'."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_symlink():
            found[name] = f"-> {path.readlink()}"
        else:
            found[name] = "dir" if path.is_dir() else path.read_text()
    return found


def test_a_folder_goes_in_and_out_with_links_modes_and_empty_folders(run, tmp_path):
    source = tmp_path / "source"
    (source / "sub" / "empty").mkdir(parents=True)
    (source / "sub" / "ü 'x'.txt").write_text("text")
    (source / "run.sh").write_text("#!/bin/sh\necho ran\n")
    (source / "run.sh").chmod(0o4755)
    (source / "link").symlink_to("sub/ü 'x'.txt")
    (source / "out").symlink_to("/etc/hostname")

    async def body(env: BubblewrapEnvironment) -> None:
        await env.upload_dir(source, "/data/with space")
        result = await env.exec("./run.sh; cat link; stat -c '%a %U' run.sh", cwd="/data/with space")
        assert result.stdout == "ran\ntext755 root\n"
        await env.download_dir("/data/with space", tmp_path / "back")

    run(body)
    expected = tree(source)
    del expected["out"]
    assert tree(tmp_path / "back") == expected
    assert (tmp_path / "back" / "run.sh").stat().st_mode & 0o7777 == 0o755


def test_files_go_in_and_out(run, tmp_path):
    (tmp_path / "tool").write_bytes(os.urandom(3_000_000))
    (tmp_path / "tool").chmod(0o750)

    async def body(env: BubblewrapEnvironment) -> None:
        await env.upload_file(tmp_path / "tool", "/deep/er/tool")
        await env.upload_file(tmp_path / "tool", "/app")
        assert (await env.exec("cmp /deep/er/tool /app/tool && stat -c %a tool")).stdout == "750\n"
        await env.download_file("/deep/er/tool", tmp_path / "new" / "tool")
        await env.exec("ln -s /etc/passwd link; mkfifo pipe")
        for absent in ("/app/absent", "/app/link", "/app/pipe", "/app"):
            with pytest.raises(RuntimeError, match=f"download of {absent} failed"):
                await env.download_file(absent, tmp_path / "never")
        with pytest.raises(RuntimeError, match="download of /absent failed"):
            await env.download_dir("/absent", tmp_path / "nothing")
        for absent in (env.upload_file, env.upload_dir):
            with pytest.raises(FileNotFoundError):
                await absent(tmp_path / "absent", "/app/absent")
        with pytest.raises(RuntimeError, match="upload failed"):
            await env.upload_dir(tmp_path / "new", "/usr/share/x")

    run(body)
    assert (tmp_path / "new" / "tool").read_bytes() == (tmp_path / "tool").read_bytes()
    assert not (tmp_path / "never").exists()


def test_selected_downloads(run, tmp_path):
    async def body(env: BubblewrapEnvironment) -> None:
        await env.exec("mkdir -p a/cache; touch a/x.txt a/y.log a/cache/z.txt ./-T; echo 1 > reward.txt")
        await env.download_dir_with_exclusions(
            source_dir="/app", target_dir=tmp_path / "some", exclude=["cache", "*.log"]
        )
        await env.download_dir_filtered(
            source_dir="/app", target_dir=tmp_path / "few", include=["*.log", "-T"], protect=["reward.txt", "absent"]
        )

    run(body)
    assert set(tree(tmp_path / "some")) == {"a", "a/x.txt", "-T", "reward.txt"}
    assert set(tree(tmp_path / "few")) == {"a", "a/y.log", "-T", "reward.txt"}


def test_what_an_agent_leaves_in_a_folder_does_not_spoil_its_download(run, tmp_path):
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "key").write_text("secret")

    async def body(env: BubblewrapEnvironment) -> None:
        await env.exec(
            f"cd /logs/agent && echo log > log.txt && mkfifo pipe && ln -s {tmp_path}/secret stolen"
            " && ln -s ../../../x up && ln -s log.txt good"
            " && python -c \"import socket; socket.socket(socket.AF_UNIX).bind('s')\""
            " && echo no > unreadable && chmod 000 unreadable && chmod 4777 log.txt && ln log.txt hard"
            " && mkdir closed && chmod 000 closed"
        )
        await env.download_dir("/logs/agent", tmp_path / "logs")

    run(body)
    got = tree(tmp_path / "logs")
    assert got.pop("closed", "dir") == "dir"
    assert got.pop("unreadable", "no\n") == "no\n"
    assert got == {"good": "-> log.txt", "log.txt": "log\n", "hard": "log\n"}


def test_files_that_change_and_vanish_while_they_are_packed(run, tmp_path):
    churn = "while :; do for i in $(seq 50); do seq 9999 > v$i; done; rm -f v*; done"

    async def body(env: BubblewrapEnvironment) -> None:
        await env.exec(f"echo steady > steady; ({churn}) >/dev/null 2>&1 &")
        for _ in range(10):
            await env.download_dir("/app", tmp_path / "out")
            assert (tmp_path / "out" / "steady").read_text() == "steady\n"

    run(body)


def test_a_download_is_not_held_up_by_who_keeps_the_pipe(run, tmp_path):
    async def body(env: BubblewrapEnvironment) -> None:
        held = "sleep 99 & head -c 512 /dev/zero"
        code, _, result = await env._running().drain(env._of_root(held), lambda stream: stream.read(99), 5)
        assert (code, result) == (0, bytes(99))
        begun = asyncio.get_running_loop().time()
        code, _, result = await env._running().drain(env._of_root("sleep 99 &"), lambda stream: stream.read(9), 5)
        assert (code, result) == (0, b"")
        assert asyncio.get_running_loop().time() - begun < 2

    run(body)


def test_an_upload_that_nobody_reads_ends(run, monkeypatch):
    monkeypatch.setattr(jobs, "KILL_SEC", 0.5)

    async def body(env: BubblewrapEnvironment) -> None:
        def write(fd: int) -> None:
            with os.fdopen(fd, "wb") as stream:
                stream.write(bytes(1 << 20))

        holder = env._of_root("sleep 99 <&0 & exit 0")
        code, _ = await asyncio.wait_for(env._running().feed(holder, write, 5), 4)
        assert code == 0
        with pytest.raises(RuntimeError, match="gone"):
            await env.download_dir("/app", "/nowhere")

    run(body)


def test_a_transfer_that_takes_too_long_is_no_harbor_timeout(run, monkeypatch, tmp_path):
    monkeypatch.setattr(environment, "TRANSFER_SEC", 0.3)

    async def body(env: BubblewrapEnvironment) -> None:
        await env.exec("truncate -s 900G huge")
        with pytest.raises(RuntimeError, match=r"download of /app took more than 0\.3 seconds"):
            await env.download_dir("/app", tmp_path / "out")

    run(body)


def test_a_link_in_place_of_the_target_folder_leads_nowhere_on_the_host(run, tmp_path):
    victim = tmp_path / "victim"
    victim.mkdir()

    async def body(env: BubblewrapEnvironment) -> None:
        await env.exec(
            f"rm -rf /app/into; ln -s {victim} /app/into; mkdir -p {tmp_path}; ln -s {victim} {tmp_path}/via"
        )
        (tmp_path / "file").write_text("x")
        await env.upload_file(tmp_path / "file", "/app/into/file")
        await env.upload_file(tmp_path / "file", f"{tmp_path}/via/file")

    with pytest.raises(RuntimeError, match="upload failed"):
        run(body)
    assert list(victim.iterdir()) == []


def archive(*members: tuple[tarfile.TarInfo, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for info, content in members:
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def entry(
    name: str, kind: bytes = tarfile.REGTYPE, link: str = "", content: bytes = b""
) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.mode = kind, link, 0o6777
    return info, content


def through_pipe[T](data: bytes, read: Callable[[PipeReader], T]) -> T:
    source, sink = os.pipe()

    def write() -> None:
        with os.fdopen(sink, "wb") as stream:
            stream.write(data)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        return read(PipeReader(source, threading.Event()))
    finally:
        writer.join()
        os.close(source)


SYM, LNK, DIR = tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE


@pytest.mark.parametrize(
    "members",
    [
        [entry("/{outside}/f", content=b"bad")],
        [entry("../outside/f", content=b"bad")],
        [entry("a/../../outside/f", content=b"bad")],
        [entry("l", SYM, "../outside"), entry("l/f", content=b"bad")],
        [entry("l", SYM, "{outside}"), entry("l/f", content=b"bad")],
        [entry("s", SYM, "."), entry("l", SYM, "s/s/s/../../../outside"), entry("l/f", content=b"bad")],
        [
            entry("d/e", DIR),
            entry("s", SYM, "d/e"),
            entry("l", SYM, "s/../../../outside"),
            entry("l/f", content=b"bad"),
        ],
        [entry("present/f", content=b"bad")],
        [entry("present", DIR), entry("present/f", content=b"bad")],
        [entry("present/g", SYM, "f")],
        [entry("h", LNK, "../outside/kept"), entry("h", content=b"bad")],
        [entry("h", LNK, "present/kept"), entry("h", content=b"bad")],
        [entry("file", content=b"bad"), entry("file/x", content=b"bad")],
        [entry("kept-link", content=b"bad")],
        [entry("x" * 300, content=b"bad")],
        [entry("n\0ul", content=b"bad")],
        [entry("dev", tarfile.CHRTYPE), entry("fifo", tarfile.FIFOTYPE)],
    ],
)
def test_hostile_archives_write_nothing_outside(tmp_path, members):
    target, outside = tmp_path / "target", tmp_path / "outside"
    target.mkdir()
    outside.mkdir()
    (outside / "kept").write_text("kept")
    (target / "present").symlink_to(outside)
    (target / "kept-link").symlink_to(outside / "kept")
    for info, _ in members:
        info.name = info.name.replace("{outside}", str(outside).lstrip("/"))
        info.linkname = info.linkname.replace("{outside}", str(outside))
    data = archive(*members, entry("good", content=b"good"))
    through_pipe(data, lambda stream: unpack(stream, target))
    assert tree(outside) == {"kept": "kept"}
    assert (target / "good").read_text() == "good"
    for path in target.rglob("*"):
        if path.name not in ("present", "kept-link"):
            assert path.resolve().is_relative_to(target)
            assert not path.lstat().st_mode & 0o6000


def test_a_cut_off_archive_is_an_error(tmp_path):
    data = archive(entry("a", content=b"x" * 50_000))
    with pytest.raises(tarfile.ReadError):
        through_pipe(data[:20_000], lambda stream: unpack(stream, tmp_path))


def test_a_file_that_is_a_link_is_refused(tmp_path):
    with pytest.raises(Refused):
        through_pipe(archive(entry("a", SYM, "/etc/passwd")), lambda stream: unpack_file(stream, tmp_path / "a"))
