"""The calls by gRPC: methods named after them, behind a check of the token, the faults and a count."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import grpc
import yaml
from beaker import beaker_pb2 as pb2
from beaker import beaker_pb2_grpc

from tests.fakes.beaker_server.jobs import cancel_all
from tests.fakes.beaker_server.state import (
    ORGANIZATION,
    TOKEN,
    USER,
    Group,
    Refused,
    State,
    missing,
    new_id,
    now,
    refuse_second,
)


class Calls:
    """What is played; all other calls are UNIMPLEMENTED."""

    def __init__(self, state: State) -> None:
        self.state = state

    # --- Who and where --------------------------------------------------------------------------------

    def GetUser(self, request: Any) -> Any:
        return pb2.GetUserResponse(user=pb2.User(id=f"01{USER}", name=USER))

    def ResolveUserName(self, request: Any) -> Any:
        return pb2.ResolveUserNameResponse(user_id=self.state.known("user", request.user_name))

    def GetOrganization(self, request: Any) -> Any:
        return pb2.GetOrganizationResponse(organization=pb2.Organization(id=f"01{ORGANIZATION}", name=ORGANIZATION))

    def ResolveOrganizationName(self, request: Any) -> Any:
        found = self.state.known("organization", request.organization_name)
        return pb2.ResolveOrganizationNameResponse(organization_id=found)

    def ResolveWorkspaceName(self, request: Any) -> Any:
        found = self.state.known("workspace", f"{request.owner_name}/{request.workspace_name}")
        return pb2.ResolveWorkspaceNameResponse(workspace_id=found)

    def GetWorkspace(self, request: Any) -> Any:
        name = request.workspace_id.removeprefix("01").replace(".", "/", 1)
        return pb2.GetWorkspaceResponse(workspace=pb2.Workspace(id=request.workspace_id, name=name))

    def ResolveBudgetName(self, request: Any) -> Any:
        found = self.state.known("budget", f"{request.organization_name}/{request.budget_name}")
        return pb2.ResolveBudgetNameResponse(budget_id=found)

    def ResolveClusterName(self, request: Any) -> Any:
        found = self.state.known("cluster", f"{request.owner_name}/{request.cluster_name}")
        return pb2.ResolveClusterNameResponse(cluster_id=found)

    def GetCluster(self, request: Any) -> Any:
        name = request.cluster_id.removeprefix("01").partition(".")[2]
        return pb2.GetClusterResponse(cluster=pb2.Cluster(id=request.cluster_id, name=name))

    def ResolveImageName(self, request: Any) -> Any:
        found = self.state.known("image", f"{request.author_name}/{request.image_name}")
        return pb2.ResolveImageNameResponse(image_id=found)

    def GetImage(self, request: Any) -> Any:
        self.state.known("image", request.image_id)
        return pb2.GetImageResponse(image=pb2.Image(id=request.image_id, name=request.image_id.removeprefix("01")))

    # --- Secrets --------------------------------------------------------------------------------------

    def GetSecret(self, request: Any) -> Any:
        if (request.workspace_id, request.secret_name) not in self.state.secrets:
            missing("secret", request.secret_name)
        return pb2.GetSecretResponse(secret=pb2.Secret(name=request.secret_name, created=now()))

    def ListSecrets(self, request: Any) -> Any:
        names = sorted(name for place, name in self.state.secrets if place == request.options.workspace_id)
        return pb2.ListSecretsResponse(secrets=[pb2.Secret(name=name) for name in names])

    # --- Datasets -------------------------------------------------------------------------------------

    def ResolveDatasetName(self, request: Any) -> Any:
        found = (one for one in self.state.datasets.values() if one.pb.name == request.dataset_name)
        dataset = next(found, None) if request.author_name == USER else None
        if dataset is None:
            missing("dataset", f"{request.author_name}/{request.dataset_name}")
        return pb2.ResolveDatasetNameResponse(dataset_id=dataset.pb.id)

    def GetDataset(self, request: Any) -> Any:
        return pb2.GetDatasetResponse(dataset=self.state.dataset(request.dataset_id).pb)

    def ListDatasets(self, request: Any) -> Any:
        wanted = request.options
        found = [
            one.pb
            for one in self.state.datasets.values()
            if wanted.workspace_id in ("", one.pb.workspace_id)
            and wanted.name_or_description_substring in f"{one.pb.name} {one.pb.description}"
        ]
        return pb2.ListDatasetsResponse(datasets=found)

    def UpdateDataset(self, request: Any) -> Any:
        dataset = self.state.dataset(request.dataset_id)
        dataset.pb.description = request.description
        return pb2.UpdateDatasetResponse(dataset=dataset.pb)

    def ListDatasetFiles(self, request: Any) -> Any:
        folder = self.state.dataset(request.options.dataset_id).folder
        files = (path for path in sorted(folder.rglob("*")) if path.is_file())
        found = [pb2.DatasetFile(path=str(path.relative_to(folder)), size=path.stat().st_size) for path in files]
        return pb2.ListDatasetFilesResponse(
            dataset_files=[one for one in found if one.path.startswith(request.options.prefix)]
        )

    def DeleteDatasets(self, request: Any) -> Any:
        for dataset_id in request.dataset_ids:
            self.state.dataset(dataset_id)
            del self.state.datasets[dataset_id]
        return pb2.DeleteDatasetsResponse()

    # --- Experiments ----------------------------------------------------------------------------------

    def ResolveWorkloadName(self, request: Any) -> Any:
        found = (one for one in self.state.experiments.values() if one.pb.name == request.workload_name)
        experiment = next(found, None) if request.author_name == USER else None
        if experiment is None:
            missing("workload", f"{request.author_name}/{request.workload_name}")
        return pb2.ResolveWorkloadNameResponse(workload_id=experiment.pb.id)

    def GetWorkload(self, request: Any) -> Any:
        return pb2.GetWorkloadResponse(workload=self.state.experiment(request.workload_id).workload)

    def ListWorkloads(self, request: Any) -> Any:
        wanted = request.options
        found = [
            one.workload
            for one in self.state.experiments.values()
            if wanted.workspace_id in ("", one.pb.workspace_id)
            and wanted.name_or_description_substring in f"{one.pb.name} {one.pb.description}"
            and (not wanted.statuses or one.workload.status in wanted.statuses)
            and (not wanted.HasField("job_finalized") or wanted.job_finalized == one.latest[0].finalized)
        ]
        return pb2.ListWorkloadsResponse(workloads=found)

    def UpdateWorkload(self, request: Any) -> Any:
        experiment = self.state.experiment(request.workload_id)
        for name in ("name", "description"):
            if request.HasField(name):
                setattr(experiment.pb, name, getattr(request, name))
        return pb2.UpdateWorkloadResponse(workload=experiment.workload)

    def CancelWorkloads(self, request: Any) -> Any:
        cancel_all(self.state, list(request.workload_ids))
        return pb2.CancelWorkloadsResponse(workload_ids=request.workload_ids)

    def DeleteWorkloads(self, request: Any) -> Any:
        cancel_all(self.state, list(request.workload_ids))
        for workload_id in request.workload_ids:
            del self.state.experiments[workload_id]
        return pb2.DeleteWorkloadsResponse()

    def GetExperimentYamlSpec(self, request: Any) -> Any:
        spec = self.state.experiment(request.experiment_id).spec
        return pb2.GetExperimentYamlSpecResponse(experiment_spec=yaml.safe_dump(spec))

    # --- Jobs -----------------------------------------------------------------------------------------

    def GetJob(self, request: Any) -> Any:
        return pb2.GetJobResponse(job=self.state.job(request.job_id).pb)

    def ListJobs(self, request: Any) -> Any:
        wanted = request.options
        found = [
            job.pb
            for job in self.state.jobs()
            if wanted.task_id in ("", job.task_id)
            and (not wanted.HasField("finalized") or wanted.finalized == job.finalized)
        ]
        if wanted.sort_clause.sort_order != pb2.SORT_ORDER_ASCENDING:
            found.reverse()
        return _page(request, found, pb2.ListJobsResponse, "jobs")

    def ListSummarizedJobEvents(self, request: Any) -> Any:
        events = self.state.job(request.options.job_id).events
        found = [
            pb2.SummarizedJobEvent(job_id=request.options.job_id, status=status, latest_message=said, occurrences=1)
            for status, said in reversed(events)
        ]
        return _page(request, found, pb2.ListSummarizedJobEventsResponse, "summarized_job_events")

    def StreamJobLogs(self, request: Any) -> Iterator[Any]:
        job = self.state.job(request.job_id)
        since = request.since.ToNanoseconds() if request.HasField("since") else 0
        yield from job.stream(since, request.tail_lines, request.follow)

    # --- Groups ---------------------------------------------------------------------------------------

    def CreateGroup(self, request: Any) -> Any:
        refuse_second(request.name, (one.pb.name for one in self.state.groups.values()))
        made = pb2.Group(id=new_id("GR"), name=request.name, workspace_id=request.workspace_id)
        made.full_name, made.description = f"{USER}/{request.name}", request.description
        made.created.CopyFrom(now())
        self._check(request.experiment_ids)
        self.state.groups[made.id] = Group(made, list(request.experiment_ids))
        return pb2.CreateGroupResponse(group=made)

    def UpdateGroup(self, request: Any) -> Any:
        group = self.state.group(request.group_id)
        self._check(request.add_experiment_ids)
        group.experiments = list(dict.fromkeys([*group.experiments, *request.add_experiment_ids]))
        return pb2.UpdateGroupResponse(group=group.pb)

    def GetGroup(self, request: Any) -> Any:
        return pb2.GetGroupResponse(group=self.state.group(request.group_id).pb)

    def ListGroups(self, request: Any) -> Any:
        wanted = request.options
        found = [
            one.pb
            for one in self.state.groups.values()
            if wanted.workspace_id in ("", one.pb.workspace_id)
            and wanted.name_or_description_substring in f"{one.pb.name} {one.pb.description}"
        ]
        return _page(request, found, pb2.ListGroupsResponse, "groups")

    def DeleteGroups(self, request: Any) -> Any:
        for group_id in request.group_ids:
            self.state.group(group_id)
            del self.state.groups[group_id]
        return pb2.DeleteGroupsResponse()

    def _check(self, experiment_ids: Iterable[str]) -> None:
        for experiment_id in experiment_ids:
            self.state.experiment(experiment_id)


def _page(request: Any, found: list[Any], answer: Any, field: str) -> Any:
    """A page of what was found; the token says where the next one begins."""
    begin = int(request.next_page_token or 0)
    end = begin + (request.options.page_size or 50)
    return answer(**{field: found[begin:end]}, next_page_token=str(end) if end < len(found) else "")


# --- As a server --------------------------------------------------------------------------------------


def servicer(state: State) -> Any:
    """The calls as gRPC wants them."""
    calls = Calls(state)
    names = [name for name in vars(Calls) if name[0].isupper()]
    handlers = {name: (_stream if name.startswith("Stream") else _single)(state, name, calls) for name in names}
    return type("Beaker", (beaker_pb2_grpc.BeakerServicer,), handlers)()


def _single(state: State, name: str, calls: Calls) -> Callable[..., Any]:
    def handle(_self: Any, request: Any, context: grpc.ServicerContext) -> Any:
        lost = _before(state, name, request, context)
        try:
            with state.lock:
                answer = getattr(calls, name)(request)
        except Refused as refused:
            context.abort(refused.status, refused.message)
        if lost:
            context.abort(*lost)
        return answer

    return handle


def _stream(state: State, name: str, calls: Calls) -> Callable[..., Any]:
    def handle(_self: Any, request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
        lost = _before(state, name, request, context)
        try:
            for message in getattr(calls, name)(request):
                if not context.is_active():
                    return
                yield message
                if lost:
                    context.abort(*lost)
        except Refused as refused:
            context.abort(refused.status, refused.message)
        except ConnectionResetError:
            context.abort(grpc.StatusCode.INTERNAL, "stream terminated by RST_STREAM with error code: NO_ERROR")

    return handle


def _before(state: State, name: str, request: Any, context: Any) -> tuple[grpc.StatusCode, str] | None:
    """Check the token and the faults; what is returned is the error with which the answer gets lost."""
    state.calls[name] += 1
    if dict(context.invocation_metadata()).get("authorization") != f"bearer {TOKEN}":
        context.abort(grpc.StatusCode.UNAUTHENTICATED, "invalid authorization token")
    fault = state.faults.of(name, lambda: str(request))
    if fault is None:
        return None
    time.sleep(fault.delay_sec)
    if fault.status == "OK":
        return None
    error = grpc.StatusCode[fault.status], fault.message
    if fault.when == "before":
        context.abort(*error)
    return error
