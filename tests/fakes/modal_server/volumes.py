"""Volumes: a folder each. A sandbox sees a copy, which is published when it commits."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import threading
import time
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any

from google.protobuf.empty_pb2 import Empty
from grpclib import Status
from modal_proto import api_pb2 as api

from tests.fakes.modal_server.state import State, fail, new_id

BLOCK = 8 * 1024 * 1024
SMALL = 1 << 20


class Volume:
    """A volume and its files as committed."""

    def __init__(self, state: State, name: str, version: int) -> None:
        self.id, self.name, self.version, self.created = new_id("vo"), name, version, time.time()
        self.folder = state.folder / "volumes" / self.id
        self.folder.mkdir(parents=True)

    @property
    def metadata(self) -> api.VolumeMetadata:
        made = api.CreationInfo(created_at=self.created, created_by="fake")
        return api.VolumeMetadata(version=self.version, name=self.name, creation_info=made)  # type: ignore[arg-type]


class VolumeMount:
    """A sandbox's own view of a volume: taken when it starts, published by `commit`, renewed by `reload`.

    `close` publishes it for the last time: what happens to the view afterwards, above all its removal, is not.
    """

    def __init__(self, volume: Volume, mount: api.VolumeMount, local: Path) -> None:
        self.path, self.read_only, self.local = mount.mount_path, mount.read_only, local
        self.volume_id = volume.id
        self._volume = volume
        self._source = volume.folder / mount.sub_path.strip("/")
        self._source.mkdir(parents=True, exist_ok=True)
        local.mkdir(parents=True)
        _copy(self._source, local, _tree(self._source))
        self._base = _tree(local)
        self._committing = threading.RLock()
        self._closed = False

    def close(self) -> None:
        with self._committing:
            self.commit()
            self._closed = True

    def commit(self) -> None:
        with self._committing:
            if not (self.read_only or self._closed) and self._volume.folder.exists():
                self._publish()

    def _publish(self) -> None:
        now = _tree(self.local)
        _remove(self._source, self._base.keys() - now.keys())
        _copy(self.local, self._source, [name for name, found in now.items() if self._base.get(name) != found])
        self._base = now

    def reload(self) -> None:
        self.commit()
        published = _tree(self._source)
        _remove(self.local, _tree(self.local).keys() - published.keys())
        _copy(self._source, self.local, published)
        self._base = _tree(self.local)


def _tree(folder: Path) -> dict[str, tuple[int, ...]]:
    """Every entry below a folder, with what changes when it does."""
    found = {}
    for where, folders, files in os.walk(folder):
        for name in (*folders, *files):
            path = Path(where) / name
            status = path.lstat()
            kind = stat.S_IFMT(status.st_mode)
            is_folder = kind == stat.S_IFDIR
            found[str(path.relative_to(folder))] = (kind, *(() if is_folder else (status.st_size, status.st_mtime_ns)))
    return found


def _remove(folder: Path, names: Iterable[str]) -> None:
    for name in sorted(names, reverse=True):
        path = folder / name
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def _copy(source: Path, target: Path, names: Iterable[str]) -> None:
    for name in sorted(names):
        old, new = source / name, target / name
        if old.is_dir() and not old.is_symlink():
            new.mkdir(parents=True, exist_ok=True)
            continue
        new.parent.mkdir(parents=True, exist_ok=True)
        new.unlink(missing_ok=True)
        if old.is_symlink() or old.lstat().st_size < SMALL:
            shutil.copy2(old, new, follow_symlinks=False)
        else:
            subprocess.run(["cp", "-a", "--sparse=always", "--", old, new], check=True)


class Volumes:
    """The calls."""

    def __init__(self, state: State) -> None:
        self.state = state

    async def VolumeGetOrCreate(self, request: api.VolumeGetOrCreateRequest) -> api.VolumeGetOrCreateResponse:
        how, name = request.object_creation_type, request.deployment_name
        volume = next((one for one in self.state.volumes.values() if one.name and one.name == name), None)
        if volume and how == api.OBJECT_CREATION_TYPE_CREATE_FAIL_IF_EXISTS:
            fail(Status.ALREADY_EXISTS, f"Volume '{name}' already exists")
        if not volume and how == api.OBJECT_CREATION_TYPE_UNSPECIFIED:
            fail(Status.NOT_FOUND, f"Volume '{name}' not found in environment 'main'")
        if not volume:
            volume = Volume(self.state, name, request.version or api.VOLUME_FS_VERSION_V2)
            self.state.volumes[volume.id] = volume
        return api.VolumeGetOrCreateResponse(
            volume_id=volume.id,
            version=volume.version,  # type: ignore[arg-type]
            metadata=volume.metadata,
        )

    async def VolumeGetById(self, request: api.VolumeGetByIdRequest) -> api.VolumeGetByIdResponse:
        volume = self.state.volume(request.volume_id)
        return api.VolumeGetByIdResponse(volume_id=volume.id, metadata=volume.metadata)

    async def VolumeHeartbeat(self, request: api.VolumeHeartbeatRequest) -> Empty:
        return Empty()

    async def VolumeRename(self, request: api.VolumeRenameRequest) -> Empty:
        if any(one.name == request.name for one in self.state.volumes.values()):
            fail(Status.ALREADY_EXISTS, f"Volume '{request.name}' already exists")
        self.state.volume(request.volume_id).name = request.name
        return Empty()

    async def VolumeList(self, request: api.VolumeListRequest) -> api.VolumeListResponse:
        before = request.pagination.created_before or float("inf")
        found = sorted(
            (one for one in self.state.volumes.values() if one.name and one.created < before),
            key=lambda one: -one.created,
        )
        items = [
            api.VolumeListItem(label=one.name, volume_id=one.id, created_at=one.created, metadata=one.metadata)
            for one in found[: request.pagination.max_objects or 100]
        ]
        return api.VolumeListResponse(items=items, environment_name="main")

    async def VolumeDelete(self, request: api.VolumeDeleteRequest) -> Empty:
        volume = self.state.volume(request.volume_id)
        del self.state.volumes[volume.id]
        shutil.rmtree(volume.folder, ignore_errors=True)
        return Empty()

    async def VolumeCommit(self, request: api.VolumeCommitRequest) -> api.VolumeCommitResponse:
        return api.VolumeCommitResponse(skip_reload=False)

    async def VolumeReload(self, request: api.VolumeReloadRequest) -> Empty:
        return Empty()

    # --- Files, from outside a sandbox ----------------------------------------------------------------

    async def VolumeListFiles(self, request: api.VolumeListFilesRequest) -> AsyncIterator[api.VolumeListFilesResponse]:
        yield api.VolumeListFilesResponse(entries=self._entries(request))

    async def VolumeListFiles2(
        self, request: api.VolumeListFiles2Request
    ) -> AsyncIterator[api.VolumeListFiles2Response]:
        yield api.VolumeListFiles2Response(entries=self._entries(request))

    def _entries(self, request: Any) -> list[api.FileEntry]:
        volume = self.state.volume(request.volume_id)
        place = volume.folder / request.path.strip("/")
        if not place.exists():
            fail(Status.NOT_FOUND, f"{request.path} not found")
        found = [place] if place.is_file() else sorted(place.rglob("*") if request.recursive else place.iterdir())
        return [_entry(volume, path) for path in found]

    async def VolumePutFiles(self, request: api.VolumePutFilesRequest) -> Empty:
        volume = self.state.volume(request.volume_id)
        for file in request.files:
            data = self.state.blobs[file.sha256_hex]
            _put(volume, file.filename, data, file.mode, request.disallow_overwrite_existing_files)
        return Empty()

    async def VolumePutFiles2(self, request: api.VolumePutFiles2Request) -> api.VolumePutFiles2Response:
        volume, blobs = self.state.volume(request.volume_id), self.state.blobs
        missing = [
            api.VolumePutFiles2Response.MissingBlock(
                file_index=number, block_index=part, put_url=f"{self.state.blob_url}/block"
            )
            for number, file in enumerate(request.files)
            for part, block in enumerate(file.blocks)
            if block.put_response.decode() not in blobs and block.contents_sha256.hex() not in blobs
        ]
        for file in request.files if not missing else ():
            data = b"".join(blobs[block.contents_sha256.hex()] for block in file.blocks)
            whole = data.ljust(file.size, b"\0")
            _put(volume, file.path, whole, file.mode, request.disallow_overwrite_existing_files)
        return api.VolumePutFiles2Response(missing_blocks=missing)

    async def VolumeGetFile2(self, request: api.VolumeGetFile2Request) -> api.VolumeGetFile2Response:
        volume = self.state.volume(request.volume_id)
        name = request.path.strip("/")
        if not (volume.folder / name).is_file():
            fail(Status.NOT_FOUND, f"{request.path} not found")
        size = (volume.folder / name).stat().st_size
        urls = [f"{self.state.blob_url}/vol/{volume.id}/{block}/{name}" for block in range(-(-size // BLOCK))]
        return api.VolumeGetFile2Response(size=size, start=0, len=size, get_urls=urls)

    async def VolumeRemoveFile(self, request: api.VolumeRemoveFileRequest) -> Empty:
        return self._remove(request)

    async def VolumeRemoveFile2(self, request: api.VolumeRemoveFile2Request) -> Empty:
        return self._remove(request)

    def _remove(self, request: Any) -> Empty:
        path = self.state.volume(request.volume_id).folder / request.path.strip("/")
        if not os.path.lexists(path):
            fail(Status.NOT_FOUND, f"{request.path} not found")
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
        return Empty()


def _entry(volume: Volume, path: Path) -> api.FileEntry:
    kinds = api.FileEntry.FileType
    kind = kinds.SYMLINK if path.is_symlink() else kinds.DIRECTORY if path.is_dir() else kinds.FILE
    found = path.lstat()
    name = str(path.relative_to(volume.folder))
    return api.FileEntry(path=name, mtime=int(found.st_mtime), size=found.st_size, type=kind)


def _put(volume: Volume, name: str, data: bytes, mode: int, only_new: bool) -> None:
    path = volume.folder / name.strip("/")
    if only_new and path.exists():
        fail(Status.ALREADY_EXISTS, f"{name} already exists")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    if mode:
        path.chmod(mode & 0o7777)
