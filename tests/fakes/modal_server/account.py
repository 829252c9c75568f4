"""Calls about the session, apps, secrets and uploaded files."""

from __future__ import annotations

import hashlib
import json

from google.protobuf.empty_pb2 import Empty
from grpclib import Status
from modal_proto import api_pb2 as api

from tests.fakes.modal_server.state import State, fail, jwt, new_id


class Account:
    """Session, apps, secrets, mounts."""

    def __init__(self, state: State) -> None:
        self.state = state

    async def ClientHello(self, request: Empty) -> api.ClientHelloResponse:
        return api.ClientHelloResponse()

    async def AuthTokenGet(self, request: api.AuthTokenGetRequest) -> api.AuthTokenGetResponse:
        return api.AuthTokenGetResponse(token=jwt())

    async def WorkspaceNameLookup(self, request: Empty) -> api.WorkspaceNameLookupResponse:
        return api.WorkspaceNameLookupResponse(workspace_name="fake", username="fake")

    async def EnvironmentGetOrCreate(
        self, request: api.EnvironmentGetOrCreateRequest
    ) -> api.EnvironmentGetOrCreateResponse:
        settings = api.EnvironmentSettings(image_builder_version="2025.06")
        metadata = api.EnvironmentMetadata(name=request.deployment_name or "main", settings=settings)
        return api.EnvironmentGetOrCreateResponse(environment_id="en-fake", metadata=metadata)

    async def AppGetOrCreate(self, request: api.AppGetOrCreateRequest) -> api.AppGetOrCreateResponse:
        apps = self.state.apps
        if request.app_name not in apps:
            if request.object_creation_type != api.OBJECT_CREATION_TYPE_CREATE_IF_MISSING:
                fail(Status.NOT_FOUND, f"App '{request.app_name}' not found in environment 'main'")
            apps[request.app_name] = new_id("ap")
        metadata = api.AppHandleMetadata(description=request.app_name)
        return api.AppGetOrCreateResponse(app_id=apps[request.app_name], handle_metadata=metadata)

    async def SecretGetOrCreate(self, request: api.SecretGetOrCreateRequest) -> api.SecretGetOrCreateResponse:
        if request.deployment_name and not request.env_dict:
            secret_id = self.state.secret_names.get(request.deployment_name)
            if not secret_id:
                fail(Status.NOT_FOUND, f"Secret '{request.deployment_name}' not found in environment 'main'")
            return api.SecretGetOrCreateResponse(secret_id=secret_id)
        secret_id = new_id("st")
        self.state.secrets[secret_id] = dict(request.env_dict)
        if request.deployment_name:
            self.state.secret_names[request.deployment_name] = secret_id
        return api.SecretGetOrCreateResponse(secret_id=secret_id)

    # --- Files that the client uploads: what an image is built from -----------------------------------

    async def MountBatchedCheckExistence(
        self, request: api.MountBatchedCheckExistenceRequest
    ) -> api.MountBatchedCheckExistenceResponse:
        missing = [digest for digest in request.sha256_hex_hashes if digest not in self.state.blobs]
        return api.MountBatchedCheckExistenceResponse(missing_sha256_hex_hashes=missing)

    async def MountPutFile(self, request: api.MountPutFileRequest) -> api.MountPutFileResponse:
        blobs = self.state.blobs
        if request.data_blob_id:
            blobs[request.sha256_hex] = blobs[request.data_blob_id]
        elif request.WhichOneof("data_oneof") == "data":
            blobs[request.sha256_hex] = request.data
        return api.MountPutFileResponse(exists=request.sha256_hex in blobs)

    async def MountGetOrCreate(self, request: api.MountGetOrCreateRequest) -> api.MountGetOrCreateResponse:
        files = {file.filename.lstrip("/"): (file.sha256_hex, file.mode) for file in request.files}
        # Named after its content: the id is part of an image's definition, and that decides what is built anew.
        digest = hashlib.sha256(json.dumps(files, sort_keys=True).encode()).hexdigest()
        self.state.mounts[f"mo-{digest[:22]}"] = files
        return api.MountGetOrCreateResponse(
            mount_id=f"mo-{digest[:22]}", handle_metadata=api.MountHandleMetadata(content_checksum_sha256_hex=digest)
        )

    async def BlobCreate(self, request: api.BlobCreateRequest) -> api.BlobCreateResponse:
        blob_id = new_id("bl")
        urls = api.UploadUrlList(items=[f"{self.state.blob_url}/blob/{blob_id}"])
        return api.BlobCreateResponse(blob_ids=[blob_id], upload_urls=urls)
