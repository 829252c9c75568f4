"""What a cell's function has copied to the results' volume, brought to the cell's folder here."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ptb_runner.cell import read_json
from ptb_runner.launch.copies import NOT_FETCHED, SMALL, remove_others

if TYPE_CHECKING:
    import modal

_AT_ONCE = 8


async def fetch_status(volume: modal.Volume, place: str, folder: Path) -> str | None:
    """Bring the cell's status.json, and return the state in it; None when there is none yet."""
    if await _bring(volume, f"{place}/cell/status.json", folder / "status.json"):
        return (read_json(folder / "status.json") or {}).get("state")
    return None


async def fetch(volume: modal.Volume, place: str, folder: Path, *, whole: bool = False) -> None:
    """Bring what changed of a cell's files; `whole`: for the last time, so that the folder then is what was copied."""
    entries = await _listing(volume, f"{place}/cell")
    slots = asyncio.Semaphore(_AT_ONCE)

    async def bring(name: str, entry: Any) -> None:
        async with slots:
            if await _bring(volume, entry.path, folder / name):
                os.utime(folder / name, (entry.mtime, entry.mtime))

    due = {name: entry for name, entry in entries.items() if _is_due(folder / name, entry, whole)}
    await asyncio.gather(*(bring(name, entry) for name, entry in due.items()))
    if whole and entries:
        remove_others(folder / "job", {folder / name for name in entries})


async def _listing(volume: modal.Volume, path: str) -> dict[str, Any]:
    """The regular files below a folder of the volume, by their names in it."""
    import modal

    try:
        entries = await volume.listdir.aio(f"/{path}", recursive=True)
    except (modal.exception.NotFoundError, FileNotFoundError):
        return {}  # its call ended before it had begun
    files = [entry for entry in entries if entry.type.name == "FILE"]
    named = {entry.path.lstrip("/").removeprefix(f"{path}/"): entry for entry in files}
    return {name: entry for name, entry in named.items() if name.partition("/")[0] not in NOT_FETCHED}


def _is_due(path: Path, entry: Any, whole: bool) -> bool:
    try:
        known = path.stat()
    except OSError:
        return True
    return (whole and entry.size <= SMALL) or (known.st_size, int(known.st_mtime)) != (entry.size, entry.mtime)


async def _bring(volume: modal.Volume, source: str, target: Path) -> bool:
    """Download a file; False when it is not there (any more)."""
    partial = target.with_name(f".{target.name[:200]}.fetch.tmp")
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        with partial.open("wb") as file:
            async for part in volume.read_file.aio(source):
                file.write(part)
        partial.replace(target)
    except FileNotFoundError:
        return False
    finally:
        partial.unlink(missing_ok=True)
    return True
