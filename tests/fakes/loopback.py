"""Servers of http.server on loopback, in a thread of this process."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from http.server import ThreadingHTTPServer


@contextlib.contextmanager
def running[S: ThreadingHTTPServer](server: S) -> Iterator[S]:
    """A server that serves for as long as this lasts."""
    with server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
