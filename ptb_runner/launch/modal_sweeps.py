"""What detached sweeps have on Modal: for each an app and a volume of the same name, until all it did is fetched.

The sweep's own folder is what fetches and removes them. Of one that was deleted, only the note of the machine that
submitted it tells whose they were.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path

from ptb_runner.launch import job
from ptb_runner.launch.modal import reason_over, remove
from ptb_runner.sandbox import modal_account, modal_notes

PREFIX = "sweep-"


@dataclass(frozen=True)
class Sweep:
    """An app and its volume: `folder` is None when another machine has submitted it, `running` counts its calls."""

    name: str
    folder: Path | None
    running: int

    @property
    def is_orphan(self) -> bool:
        """Whether its folder is known, and gone from there."""
        return self.folder is not None and job.read(self.folder).get("volume") != self.name

    def __str__(self) -> str:
        if self.folder is None:
            end = f"modal app stop {self.name}; modal volume delete {self.name}"
            return f"{self.name}: of another machine, left alone; to remove it: {end}"
        if not self.is_orphan:
            return f"{self.name}: of {self.folder}; ptb status {self.folder} fetches what is there"
        gone = f"{self.name}: its sweep {self.folder} is gone (moved? ptb status with its new place finds it)"
        if self.running:
            return f"{gone}, {self.running} of its cells still run; to end them: modal app stop {self.name}"
        return f"{gone}, its cells are over; ptb clean backend=modal --sweeps removes it, with their results"


async def found() -> list[Sweep]:
    """All that the account has."""
    return list(await asyncio.gather(*(_found(name) for name in await modal_account.volumes(PREFIX))))


async def _found(name: str) -> Sweep:
    noted = modal_notes.noted(name)
    over = await asyncio.gather(*(reason_over({"job_id": call}) for call in noted.get("calls", ())))
    return Sweep(name, Path(noted["sweep"]) if "sweep" in noted else None, over.count(None))


async def clean() -> list[str]:
    """Remove what sweeps have left whose folder is gone and whose cells are over, and say what."""
    removed = []
    for one in await found():
        if one.is_orphan and not one.running and await remove(one.name, one.name):
            modal_notes.forget(one.name)
            removed.append(f"the app and the results' volume {one.name}")
    return removed
