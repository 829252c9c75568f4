"""`ptb cache hf backend=modal`: a named volume is filled by a Modal function, which downloads what the volume lacks."""

from __future__ import annotations

import contextlib
import queue
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ptb_runner import hf_cache
from ptb_runner.config import Config
from ptb_runner.explain import UsageError
from ptb_runner.hf_cache import Progress, Repository
from ptb_runner.launch import frozen, modal_image

MOUNT = "/mnt/hf-cache"
APP = "hf-hub-cache"
_TIMEOUT_SEC = 24 * 3600
_COMMIT_SEC = 30.0  # what was downloaded by then is kept if the container is taken away


def fill_volume(config: Config, wanted: list[Repository], show: Callable[[Progress], Any]) -> str:
    """Fill the volume of a cell's backend, telling `show` how far it is, and return its name in words.

    Raises UsageError when Modal or the hub refuses.
    """
    import modal

    name = hf_cache.volume(config)
    assert name is not None
    with tempfile.TemporaryDirectory(prefix="ptb-hub-") as folder:
        code = frozen.freeze(Path(folder), [config])
        app = modal.App(APP, include_source=False)
        function = app.function(
            image=modal_image.image(code),
            secrets=modal_image.secrets(["HF_TOKEN", "HF_ENDPOINT"], list(getattr(config.backend, "secrets", []))),
            volumes={MOUNT: modal.Volume.from_name(name, create_if_missing=True, version=2)},
            timeout=_TIMEOUT_SEC,
            include_source=False,
        )(fill)
        try:
            with app.run():
                for told in function.remote_gen(name, [asdict(one) for one in wanted]):
                    if "fault" in told:
                        raise UsageError(told["fault"])
                    show(Progress(**told))
        except modal.exception.Error as error:
            said = (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
            raise UsageError(f"Modal: {said}\n  type the same command again: what is finished is kept") from error
    hf_cache.note_volume(name, wanted)
    return f"volume {name}"


def fill(volume: str, wanted: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The function: yields how far it is, about once a second, and why it cannot go on if it cannot."""
    import modal

    told: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
    cache = modal.Volume.from_name(volume)

    def work() -> None:
        try:
            for one in wanted:
                repository = Repository(**{**one, "files": tuple(one["files"])})
                hf_cache.fill(Path(MOUNT), repository, lambda progress: told.put(asdict(progress)))
        except UsageError as error:
            told.put({"fault": str(error)})
        finally:
            told.put(None)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    committed = time.monotonic()
    while (one := told.get()) is not None:
        if time.monotonic() - committed > _COMMIT_SEC:
            with contextlib.suppress(RuntimeError):  # a file that is open may keep it from being one
                cache.commit()
            committed = time.monotonic()
        yield one
    thread.join()
    cache.commit()
