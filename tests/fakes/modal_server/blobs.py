"""The HTTP port: uploads and downloads of blobs, and orders from tests.

| | |
|---|---|
| `PUT /block`, `PUT /blob/ID`, `GET /vol/ID/BLOCK/PATH` | what the client does |
| `POST /faults` | a rule of faults.py; `DELETE /faults` takes all away |
| `POST /secrets/NAME` | a secret of the account, as a table of variables |
| `POST /gpus` | what nvidia-smi shows, by the type that was asked for |
| `GET /state` | what the account has, and the calls until now |
"""

from __future__ import annotations

import hashlib
from typing import Any

from aiohttp import web

from tests.fakes.modal_server.functions import Call
from tests.fakes.modal_server.sandboxes import Sandbox
from tests.fakes.modal_server.state import State, new_id
from tests.fakes.modal_server.volumes import BLOCK


def app(state: State) -> web.Application:
    async def put_block(request: web.Request) -> web.Response:
        data = await request.read()
        digest = hashlib.sha256(data).hexdigest()
        state.blobs[digest] = data
        return web.Response(body=digest.encode())

    async def put_blob(request: web.Request) -> web.Response:
        data = await request.read()
        state.blobs[request.match_info["id"]] = data
        # The client compares it with its own.
        return web.Response(headers={"ETag": f'"{hashlib.md5(data).hexdigest()}"'})

    async def get_block(request: web.Request) -> web.Response:
        path = state.volume(request.match_info["volume"]).folder / request.match_info["path"]
        with path.open("rb") as file:
            file.seek(int(request.match_info["block"]) * BLOCK)
            return web.Response(body=file.read(BLOCK))

    async def add_fault(request: web.Request) -> web.Response:
        state.faults.add(await request.json())
        return web.Response()

    async def clear_faults(request: web.Request) -> web.Response:
        state.faults.clear()
        return web.Response()

    async def add_secret(request: web.Request) -> web.Response:
        secret_id = state.secret_names.setdefault(request.match_info["name"], new_id("st"))
        state.secrets[secret_id] = await request.json()
        return web.Response()

    async def set_gpus(request: web.Request) -> web.Response:
        state.gpu_names = await request.json()
        return web.Response()

    async def get_state(request: web.Request) -> web.Response:
        return web.json_response(describe(state))

    served = web.Application(client_max_size=1 << 30)
    served.add_routes(
        [
            web.put("/block", put_block),
            web.put("/blob/{id}", put_blob),
            web.get("/vol/{volume}/{block}/{path:.*}", get_block),
            web.post("/faults", add_fault),
            web.delete("/faults", clear_faults),
            web.post("/secrets/{name}", add_secret),
            web.post("/gpus", set_gpus),
            web.get("/state", get_state),
        ]
    )
    return served


def describe(state: State) -> dict[str, Any]:
    return {
        "sandboxes": [_sandbox(one) for one in state.sandboxes.values()],
        "volumes": [{"name": one.name, "folder": str(one.folder)} for one in state.volumes.values()],
        "apps": dict(state.apps),
        "function_calls": [_call(one) for one in state.function_calls.values()],
        "calls": dict(state.calls),
        "images": [list(image.definition.dockerfile_commands) for image in state.images.values()],
    }


def _call(call: Call) -> dict[str, Any]:
    asked = call.function.definition
    return {
        "id": call.id,
        "running": call.result is None,
        "begun": call.given_out,
        "pid": call.process.pid if call.process else None,
        "cpu": asked.resources.milli_cpu,
        "memory_mb": asked.resources.memory_mb,
        "timeout_sec": asked.timeout_secs,
        "output": str(call.folder / "output"),
    }


def _sandbox(sandbox: Sandbox) -> dict[str, Any]:
    asked = sandbox.definition
    return {
        "id": sandbox.id,
        "name": sandbox.name,
        "tags": sandbox.tags,
        "running": not sandbox.done.is_set(),
        "created": sandbox.created,
        "timeout_sec": asked.timeout_secs,
        "gpu": sandbox.gpu,
        "gpu_count": asked.resources.gpu_config.count,
        "milli_cpu": asked.resources.milli_cpu,
        "memory_mb": asked.resources.memory_mb,
        "regions": list(asked.scheduler_placement.regions),
        "cloud": asked.cloud_provider_str,
        "volumes": {mount.mount_path: mount.read_only for mount in asked.volume_mounts},
        "blocked": asked.network_access.network_access_type == asked.network_access.BLOCKED,
    }
