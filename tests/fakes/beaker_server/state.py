"""Everything the account has, and what all calls share."""

from __future__ import annotations

import itertools
import threading
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import grpc
from beaker import beaker_pb2 as pb2
from google.protobuf.timestamp_pb2 import Timestamp

from tests.fakes.faults import Rules

if TYPE_CHECKING:
    from tests.fakes.beaker_server.jobs import Job

TOKEN, USER, ORGANIZATION = "token-of-the-fake", "tester", "ai2"
_numbers = itertools.count(1)


class Refused(Exception):
    """A call that ends with an error; both protocols know how to say it."""

    def __init__(self, status: grpc.StatusCode, message: str) -> None:
        super().__init__(message)
        self.status, self.message = status, message


def fail(status: grpc.StatusCode, message: str) -> NoReturn:
    raise Refused(status, message)


def missing(what: str, name: str) -> NoReturn:
    fail(grpc.StatusCode.NOT_FOUND, f"{what} {name} not found")


def new_id(kind: str) -> str:
    """Ids look like Beaker's, and later ones come later in the alphabet."""
    return f"01{kind}{next(_numbers):010d}"


def now() -> Timestamp:
    stamp = Timestamp()
    stamp.GetCurrentTime()
    return stamp


@dataclass
class Dataset:
    """A dataset; its files are those of a folder."""

    pb: pb2.Dataset
    folder: Path

    @property
    def committed(self) -> bool:
        return self.pb.HasField("committed")

    def commit(self) -> None:
        if not self.committed:
            self.pb.committed.CopyFrom(now())

    def file(self, name: str) -> Path:
        path = (self.folder / name).resolve()
        if not path.is_relative_to(self.folder.resolve()):
            fail(grpc.StatusCode.INVALID_ARGUMENT, f"{name} leaves the dataset")
        return path


@dataclass
class Experiment:
    """An experiment: its spec as JSON, and for each task its jobs, oldest first."""

    pb: pb2.Experiment
    spec: dict[str, Any]
    jobs: dict[str, list[Job]] = field(default_factory=dict)

    @property
    def latest(self) -> list[Job]:
        return [jobs[-1] for jobs in self.jobs.values()]

    @property
    def workload(self) -> pb2.Workload:
        self.pb.ClearField("tasks")
        for task_id, jobs in self.jobs.items():
            task = self.pb.tasks.add(id=task_id, experiment_id=self.pb.id, name=jobs[-1].spec.get("name") or task_id)
            task.status = jobs[-1].pb.status.status
        return pb2.Workload(experiment=self.pb, status=self.latest[0].pb.status.status)


@dataclass
class Group:
    """A group of experiments."""

    pb: pb2.Group
    experiments: list[str]


@dataclass
class State:
    """The account, and how its jobs are run."""

    folder: Path
    stop_sec: float = 10.0  # between a job's SIGTERM and its SIGKILL
    url: str = ""
    rpc_address: str = ""
    command: list[str] | None = None  # what jobs run instead of their own
    images: dict[str, str] = field(default_factory=dict)  # folders with the files of images by their Docker names
    held: str | None = None  # why jobs stay in the queue
    break_after: int = 0  # lines after which a log stream breaks; 0: never
    replay: int = 0  # lines that a stream with `since` sends again
    faults: Rules = field(default_factory=Rules)
    calls: Counter[str] = field(default_factory=Counter)
    datasets: dict[str, Dataset] = field(default_factory=dict)
    secrets: dict[tuple[str, str], str] = field(default_factory=dict)  # by workspace id and name
    experiments: dict[str, Experiment] = field(default_factory=dict)
    groups: dict[str, Group] = field(default_factory=dict)
    lock: threading.RLock = field(default_factory=threading.RLock)

    # --- What exists ----------------------------------------------------------------------------------

    def known(self, what: str, name: str) -> str:
        """The id of something of which the account has any, whatever it is called."""
        if "missing" in name:
            missing(what, name)
        return f"01{name.replace('/', '.')}"

    def dataset(self, dataset_id: str) -> Dataset:
        return self.datasets.get(dataset_id) or missing("dataset", dataset_id)

    def experiment(self, workload_id: str) -> Experiment:
        return self.experiments.get(workload_id) or missing("workload", workload_id)

    def group(self, group_id: str) -> Group:
        return self.groups.get(group_id) or missing("group", group_id)

    def jobs(self) -> list[Job]:
        """All jobs, in the order in which they were made."""
        found = (job for one in self.experiments.values() for jobs in one.jobs.values() for job in jobs)
        return sorted(found, key=lambda job: job.pb.id)

    def job(self, job_id: str) -> Job:
        return next((job for job in self.jobs() if job.pb.id == job_id), None) or missing("job", job_id)

    # --- What is made ---------------------------------------------------------------------------------

    def new_dataset(self, workspace_id: str, name: str = "", description: str = "") -> Dataset:
        refuse_second(name, (one.pb.name for one in self.datasets.values()))
        dataset_id = new_id("DS")
        folder = self.folder / "datasets" / dataset_id
        folder.mkdir(parents=True)
        name = name or dataset_id
        made = pb2.Dataset(id=dataset_id, name=name, full_name=f"{USER}/{name}", workspace_id=workspace_id)
        made.description = description
        made.created.CopyFrom(now())
        self.datasets[dataset_id] = Dataset(made, folder)
        return self.datasets[dataset_id]

    def new_experiment(self, workspace_id: str, name: str, spec: dict[str, Any]) -> Experiment:
        from tests.fakes.beaker_server.jobs import Job

        refuse_second(name, (one.pb.name for one in self.experiments.values()))
        self._check(spec)
        made = pb2.Experiment(id=new_id("EX"), workspace_id=workspace_id, description=spec.get("description", ""))
        made.name = name or made.id
        made.created.CopyFrom(now())
        experiment = self.experiments[made.id] = Experiment(made, spec)
        for task in spec["tasks"]:
            task_id = new_id("TK")
            experiment.jobs[task_id] = [Job(self, experiment, task_id, task)]
        for job in experiment.latest:
            job.start()
        return experiment

    def _check(self, spec: dict[str, Any]) -> None:
        if not spec.get("tasks"):
            fail(grpc.StatusCode.INVALID_ARGUMENT, "tasks: at least one is required")
        if spec.get("budget"):
            self.known("budget", spec["budget"])
        for task in spec["tasks"]:
            image = task.get("image") or {}
            if not (image.get("beaker") or image.get("docker")):
                fail(grpc.StatusCode.INVALID_ARGUMENT, "tasks[0].image: a source is required")
            for cluster in (task.get("constraints") or {}).get("cluster") or []:
                self.known("cluster", cluster)
            for mount in task.get("datasets") or []:
                if dataset_id := mount["source"].get("beaker"):
                    self.dataset(dataset_id)


def refuse_second(name: str, names: Iterable[str]) -> None:
    if name and name in set(names):
        fail(grpc.StatusCode.ALREADY_EXISTS, f"name {name} is already in use")
