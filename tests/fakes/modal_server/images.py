"""Images: a small builder that runs a Dockerfile's steps, each image a list of layers.

Every FROM of a registry is this machine's own files: there is no registry here. Known steps are FROM, RUN, COPY, ADD,
ENV, ARG and WORKDIR; others say nothing about files and are passed over. What would need the network is taken as done.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import shlex
import shutil
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

from modal_proto import api_pb2 as api

from tests.fakes.modal_server import root
from tests.fakes.modal_server.state import State

SUCCESS = api.GenericResult(status=api.GenericResult.GENERIC_STATUS_SUCCESS)
NEEDS_NETWORK = re.compile(r"^(python -m pip |pip |uv pip |/\.uv/uv |apt-get |npm |echo 'debconf )")


class BuildError(Exception):
    """A step failed."""


class Image:
    """An image that is built, or being built."""

    def __init__(self, state: State, image_id: str, definition: api.Image) -> None:
        self.id, self.definition = image_id, definition
        self.env: dict[str, str] = {}
        self.workdir = "/"
        self.layers: list[Path] = []
        self.log = ""
        self.result: api.GenericResult | None = None
        self._state = state
        self._folder = state.folder / "images" / image_id
        self.task = asyncio.create_task(self._build())

    async def _build(self) -> None:
        try:
            await self._run_steps()
            self.result = SUCCESS
        except (BuildError, OSError) as error:
            failed = api.GenericResult.GENERIC_STATUS_FAILURE
            self.result = api.GenericResult(status=failed, exception=f"Image build failed: {error}")

    async def _run_steps(self) -> None:
        context = self._folder / "context"
        context.mkdir(parents=True)
        for name, (digest, mode) in self._state.mounts.get(self.definition.context_mount_id, {}).items():
            target = context / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(self._state.blobs[digest])
            target.chmod(mode & 0o7777 or 0o644)
        for file in self.definition.context_files:
            (context / file.filename.lstrip("/")).write_bytes(file.data)
        text = re.sub(r"\\\n", " ", "\n".join(self.definition.dockerfile_commands))
        for line in (line.strip() for line in text.splitlines()):
            word, _, rest = line.partition(" ")
            if word and not word.startswith("#"):
                self.log += f"=> {line}\n"
                await self._step(word.upper(), rest.strip(), context)

    async def _step(self, word: str, rest: str, context: Path) -> None:
        match word:
            case "FROM":
                self._begin(rest.split()[0])
            case "ENV":
                for pair in shlex.split(rest):
                    key, _, value = pair.partition("=")
                    self.env[key] = value
            case "WORKDIR":
                self.workdir = str(Path(self.workdir) / rest.strip('"'))
                await self._chroot(f"mkdir -p {shlex.quote(self.workdir)}")
            case "COPY" | "ADD" if not rest.startswith("--from="):  # another image's: there is no registry
                self._copy(rest, context)
            case "RUN" if not NEEDS_NETWORK.match(rest):
                await self._chroot(f"cd {shlex.quote(self.workdir)} && {rest}")

    def _begin(self, name: str) -> None:
        base = next((one.image_id for one in self.definition.base_images if one.docker_tag == name), None)
        if base:
            below = self._state.images[base]
            self.layers, self.env, self.workdir = list(below.layers), dict(below.env), below.workdir
        else:
            self.layers = [self._state.folder / "base"]

    def _copy(self, rest: str, context: Path) -> None:
        *sources, target = [word for word in shlex.split(rest) if not word.startswith("--")]
        layer = self._new_layer()
        place = layer / (Path(self.workdir) / target).as_posix().lstrip("/")
        for source in sources:
            path = context / source.lstrip("/")
            if not path.exists():
                raise BuildError(f"COPY {source}: no such file in the build context")
            if path.is_dir():
                shutil.copytree(path, place, dirs_exist_ok=True)
            else:
                into = place / path.name if target.endswith("/") or len(sources) > 1 or target == "." else place
                into.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(path, into)

    def _new_layer(self) -> Path:
        layer = self._folder / f"layer{len(self.layers)}"
        layer.mkdir(parents=True)
        self.layers.append(layer)
        return layer

    async def _chroot(self, command: str) -> None:
        """Run a step; what it writes is a layer of its own."""
        own = self._folder / f"step{len(self.layers)}"
        lines = root.mount_script(self.layers, own)
        lines.append(f"exec chroot {root.quote(own / 'root')} /bin/sh -c {shlex.quote(command)}")
        process = await asyncio.create_subprocess_exec(
            *("unshare", "-m", "-p", "--fork", "--kill-child", "sh", "-c", "\n".join(lines)),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={"PATH": root.PATH, "HOME": "/root", **self.env},
        )
        said = (await process.communicate())[0].decode(errors="replace")
        self.log += said
        if process.returncode:
            raise BuildError(f"step failed with exit code {process.returncode}: {command}\n{said[-2000:]}")
        layer = self._new_layer()
        shutil.copytree(own / "upper" / "files", layer, symlinks=True, dirs_exist_ok=True)
        shutil.copytree(own / "upper" / "usr", layer / "usr", symlinks=True, dirs_exist_ok=True)


class Images:
    """The calls."""

    def __init__(self, state: State) -> None:
        self.state = state

    async def ImageGetOrCreate(self, request: api.ImageGetOrCreateRequest) -> api.ImageGetOrCreateResponse:
        digest = hashlib.sha256(request.image.SerializeToString(deterministic=True)).hexdigest()
        image_id = f"im-{digest[:22]}"
        image = self.state.images.get(image_id)
        if image is None or (image.result and image.result.status != SUCCESS.status):
            shutil.rmtree(self.state.folder / "images" / image_id, ignore_errors=True)
            image = self.state.images[image_id] = Image(self.state, image_id, request.image)
        # Without a result the client asks for the log, and waits.
        return api.ImageGetOrCreateResponse(image_id=image_id, result=image.result)

    async def ImageFromId(self, request: api.ImageFromIdRequest) -> api.ImageFromIdResponse:
        return api.ImageFromIdResponse(image_id=request.image_id)

    async def ImageJoinStreaming(
        self, request: api.ImageJoinStreamingRequest
    ) -> AsyncIterator[api.ImageJoinStreamingResponse]:
        image = self.state.images[request.image_id]
        await asyncio.wait([image.task], timeout=request.timeout or 55)
        if image.result:
            log = api.TaskLogs(data=image.log, file_descriptor=api.FILE_DESCRIPTOR_STDOUT)
            yield api.ImageJoinStreamingResponse(result=image.result, task_logs=[log], entry_id="1", eof=True)
