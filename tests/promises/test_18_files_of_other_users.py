"""Promise 18: what another user of a container wrote can be read and deleted by the runner's user.

The trials with real containers are in tests/podman: test_runs.py (rootful) and test_rootless.py. Here: the way that
files come out by, which makes every one of them the runner's own whatever the archive says.
"""

import io
import os
import tarfile
import threading

from ptb_runner.sandbox.transfer import PipeReader, unpack


def test_owners_and_modes_of_an_archive_are_not_taken_over(tmp_path):
    source, sink = os.pipe()
    with os.fdopen(sink, "wb") as stream, tarfile.open(fileobj=stream, mode="w|") as archive:
        folder, file = tarfile.TarInfo("logs"), tarfile.TarInfo("logs/agent.txt")
        folder.type, folder.mode, folder.uid = tarfile.DIRTYPE, 0o000, 1001
        file.size, file.mode, file.uid = 2, 0o000, 1001
        archive.addfile(folder)
        archive.addfile(file, io.BytesIO(b"hi"))
    assert unpack(PipeReader(source, threading.Event()), tmp_path / "out") == []
    os.close(source)
    written = tmp_path / "out" / "logs" / "agent.txt"
    assert written.read_text() == "hi"
    assert written.stat().st_uid == os.geteuid()
    assert written.stat().st_mode & 0o600 == 0o600
    written.unlink()
    written.parent.rmdir()
