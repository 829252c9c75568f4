"""Cells in Beaker jobs: an experiment a cell, a group a sweep; the machine that submits them may go to sleep.

A sweep's launcher.json names its group and how its experiments are called, a cell's its experiment, with every job of
it (Beaker begins a preempted one anew), the link, and where the results are. Any process that has the sweep's folder
can ask how the experiments are, bring what they have done, or cancel them. An experiment is looked for by its name
before it is made: a submission whose answer was lost is found again, and not repeated.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
import secrets
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from ptb_runner.cell import Cell, content_hash, now
from ptb_runner.config import BeakerLauncherConfig, CodeFrom, Config
from ptb_runner.explain import UsageError
from ptb_runner.launch import (
    Ended,
    beaker_client,
    beaker_jobs,
    beaker_secrets,
    beaker_source,
    beaker_spec,
    frozen,
    job,
    shipping,
    submitted,
)
from ptb_runner.launch.beaker_client import Account
from ptb_runner.launch.beaker_spec import Shipped, Source
from ptb_runner.launch.states import WAITED_FOR
from ptb_runner.paths import TEMPLATES
from ptb_runner.terminal import shown

if TYPE_CHECKING:
    from beaker import Beaker, BeakerExperimentSpec, BeakerGroup, BeakerWorkload

_UPLOAD_BYTES_PER_SEC = 1 << 20  # an upload slower than this is given up
refresh, bring, logs, notes = beaker_jobs.refresh, beaker_jobs.bring, beaker_jobs.logs, beaker_jobs.notes


def launch(sweep: Path, cells: list[Cell], out: Console) -> Ended:
    """Submit what is not over, and wait for it unless `launcher.wait=false`; Ctrl-C leaves or cancels the jobs."""
    poll_sec, numbers = beaker_spec.settings(cells[0].config).poll_sec, [submitted.number(cell) for cell in cells]
    with submitted.alone(sweep):
        for line in submit(sweep, cells):
            out.print(line, markup=False)
    return submitted.attend(
        sweep, cells, out, lambda: submitted.wait(sweep, cells, poll_sec, refresh), lambda: cancel(sweep, numbers)
    )


# --- Before anything is created -----------------------------------------------------------------------


def problems(settings: BeakerLauncherConfig, cells: list[Config]) -> list[str]:
    """What would keep the cells from running in Beaker jobs; nothing is created."""
    if fault := beaker_client.problem():
        return [fault]
    account = beaker_client.connect(settings)
    wanted = {name: held for cell in cells for name, held in beaker_spec.known_secrets(cell).items()}
    found = []
    try:
        found += _not_found(account, settings) or beaker_secrets.missing(account, settings, wanted)
        beaker_source.source(settings, cells)
    except UsageError as error:
        found.append(str(error))
    return found


def _not_found(account: Account, settings: BeakerLauncherConfig) -> list[str]:
    """What the configuration names and Beaker does not have."""
    from beaker.exceptions import BeakerNotFoundError

    asked: list[tuple[str, Callable[[Beaker], Any]]] = [
        (f"launcher.cluster={name}", lambda beaker, name=name: beaker.cluster.get(name)) for name in settings.cluster
    ]
    budget, (where, _, image) = settings.budget, settings.image.partition("://")
    asked.append((f"launcher.budget={budget}", lambda beaker: beaker.workspace.resolve_budget_id(budget)))
    if where == "beaker":
        asked.append((f"launcher.image={settings.image}", lambda beaker: beaker.image.get(image)))
    told = []
    for option, question in asked:
        try:
            account.ask(question)
        except BeakerNotFoundError:
            key = option.partition("=")[0]
            told.append(f"{option}: Beaker has none of that name\n  type {key}=NAME of one that there is")
    return told


def checks(config: Config) -> Iterator[tuple[str, bool, str]]:
    """For `ptb doctor`: name, whether it failed, and what was found."""
    from importlib.metadata import version

    settings = beaker_spec.settings(config)
    account = beaker_client.connect(settings)
    address = account.client.config.agent_address
    yield "beaker", False, f"beaker-py {version('beaker-py')}, {account.user} at {address}"
    yield "workspace", False, f"{account.workspace_name}, {settings.gpus} GPUs on {', '.join(settings.cluster)}"
    for name, secret in beaker_spec.known_secrets(config).items():
        yield "secret", False, f"a job gets {name} from {secret}"


def preview(sweep: Path, cells: list[Cell]) -> Iterator[str]:
    """The first experiment that would be made, for a dry run, as YAML; all are in files. Nobody is asked."""
    git = beaker_spec.settings(cells[0].config).code is CodeFrom.git
    source = Source("GIT-URL", "GIT-COMMIT") if git else None
    for cell in cells:
        times = _times(cell)
        shipped = Shipped("ptb-code-HASH", "ptb-cell-HASH", _results(sweep, cell, times), source)
        spec = beaker_spec.experiment(cell, shipped)
        text = f"# experiment {_name(sweep, cell, times)}\n{beaker_spec.as_yaml(spec)}"
        (cell.folder / beaker_spec.FILE).write_text(text)
        if cell is cells[0]:
            yield text
    if len(cells) > 1:
        yield f"and {len(cells) - 1} more like it: {shown(sweep)}/*/{beaker_spec.FILE}\n"


# --- Names, fixed before anything is created ----------------------------------------------------------


def _token(sweep: Path) -> str:
    """A word of the sweep's own, in the names of all that it makes at Beaker."""
    if not (known := job.read(sweep).get("token")):
        known = secrets.token_hex(4)
        job.record(sweep, kind="beaker", token=known)
    return known


def _plain(text: str, length: int) -> str:
    return re.sub(r"[^A-Za-z0-9.]+", "-", text)[:length].strip("-.")


def _name(sweep: Path, cell: Cell, times: int) -> str:
    config = cell.config
    what = _plain(f"{config.benchmark.id}-{config.model.id.rpartition('/')[2]}-{config.agent.id}", 60)
    return f"ptb-{what}-{_token(sweep)}-{cell.folder.name}-{times}"


def _results(sweep: Path, cell: Cell, times: int) -> str | None:
    """The folder that the cell's jobs copy results to, as they see it.

    A new one for each submission, unless results of the last one could not be brought here: then they are gone on with.
    """
    known, place = job.read(cell.folder), beaker_spec.settings(cell.config).results_dir
    if known.get("results") and not known.get("fetched_from"):
        return known["results"]
    return place and f"{place.rstrip('/')}/{_plain(sweep.name, 40)}-{_token(sweep)}/{cell.folder.name}-{times}"


def _times(cell: Cell) -> int:
    """Which submission of the cell the next one is; one that nobody has heard of is made again under its own name."""
    known = job.read(cell.folder)
    times = known.get("submissions", 0)
    return times if times and known.get("kind") == "beaker" and not known.get("job_id") else times + 1


# --- Submission ---------------------------------------------------------------------------------------


def submit(sweep: Path, cells: list[Cell]) -> Iterator[str]:
    """Give every cell that is not over, and has no job that works for it, an experiment; tells of each in a line.

    Raises UsageError when Beaker refuses; the cells that had been submitted until then run.
    """
    sweep = sweep.resolve()
    due = submitted.due(sweep, cells, refresh(sweep))
    if not due:
        return
    settings, configs = beaker_spec.settings(due[0].config), [cell.config for cell in due]
    account = beaker_client.connect(settings, job.read(sweep).get("workspace"))
    source = beaker_source.source(settings, configs)
    wanted = {name: held for cell in due for name, held in beaker_spec.secrets(cell).items()}
    if lacking := beaker_secrets.missing(account, settings, wanted):
        raise UsageError("\nerror: ".join(lacking))
    beaker_secrets.write(account, settings, wanted)
    job.record(sweep, workspace=account.workspace_name)
    with tempfile.TemporaryDirectory(prefix="ptb-submit-") as folder:
        code = _code(account, sweep, configs, source, Path(folder))
        group = _group(account, sweep)
        for cell in due:
            workload = _submit(account, sweep, cell, code, source, Path(folder))
            account.insist(
                lambda beaker, workload=workload: beaker.group.update(
                    group, add_experiment_ids=[workload.experiment.id]
                )
            )
            yield f"cell {cell.folder.name}: {account.client.workload.url(workload)}"


def _code(account: Account, sweep: Path, cells: list[Config], source: Source | None, folder: Path) -> str:
    """The dataset with the program: the one that holds the same already, or a new one; its id."""
    place = folder / "code"
    place.mkdir()
    shutil.copyfile(TEMPLATES / "beaker" / "entry.sh", place / "entry.sh")
    if source is None:
        shipping.wheel(frozen.freeze(sweep, cells), place)
        extras = {"modal" if cell.backend.kind == "modal" else "podman" for cell in cells}
        (place / "requirements.txt").write_text("\n".join(shipping.pins(*extras)) + "\n")
    return _dataset(account, f"ptb-code-{content_hash(place)[:16]}", sorted(place.iterdir()))


def _dataset(account: Account, name: str, files: list[Path]) -> str:
    """A dataset by a name that tells its content: found, filled up if an upload was broken off, or made; its id."""
    from beaker.exceptions import BeakerDatasetConflict, BeakerDatasetNotFound, BeakerDatasetWriteError

    full = f"{account.user}/{name}"
    try:
        dataset = account.ask(lambda beaker: beaker.dataset.get(full))
    except BeakerDatasetNotFound:
        with contextlib.suppress(BeakerDatasetConflict):  # an answer was lost, or another process makes the same
            account.insist(lambda beaker: beaker.dataset.create(name, workspace=account.workspace, commit=False))
        dataset = account.ask(lambda beaker: beaker.dataset.get(full))
    if dataset.HasField("committed"):
        return dataset.id
    patience = account.answer_sec + sum(path.stat().st_size for path in files) / _UPLOAD_BYTES_PER_SEC
    with contextlib.suppress(BeakerDatasetWriteError):  # the other one was faster
        for path in files:
            account.insist(lambda beaker, path=path: beaker.dataset.upload(dataset, path, path.name), patience)
    return account.insist(lambda beaker: beaker.dataset.commit(dataset)).id


def _group(account: Account, sweep: Path) -> BeakerGroup:
    """The sweep's group: the one that there is, or a new one."""
    name = f"ptb-{_plain(sweep.parent.name, 20)}-{_plain(sweep.name, 40)}-{_token(sweep)}"

    def find_or_make(beaker: Beaker) -> BeakerGroup:
        found = beaker.group.list(workspace=account.workspace, name_or_description=name)
        return next((one for one in found if one.name == name), None) or beaker.group.create(
            name, workspace=account.workspace, description=f"ptb_runner: {sweep}"
        )

    group = account.insist(find_or_make)
    job.record(sweep, group=group.id, group_name=name, group_link=account.client.group.url(group))
    return group


def _submit(
    account: Account, sweep: Path, cell: Cell, code: str, source: Source | None, folder: Path
) -> BeakerWorkload:
    """One cell's experiment: what it takes along, then itself; its launcher.json knows its name before it is made."""
    times, known = _times(cell), job.read(cell.folder)
    name, results = _name(sweep, cell, times), _results(sweep, cell, times)
    earlier = [*known.get("earlier", []), *filter(None, [known.get("link")])]
    submitted.begin(cell, name=f"{account.user}/{name}", results=results, submissions=times, earlier=earlier)
    packed = folder / "cell.tar"
    shipping.pack(cell.folder, sweep / "sweep.yaml", packed)
    with packed.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    files = _dataset(account, f"ptb-cell-{digest[:16]}", [packed])
    spec = beaker_spec.experiment(cell, Shipped(code, files, results, source))
    (cell.folder / beaker_spec.FILE).write_text(f"# experiment {name}\n{beaker_spec.as_yaml(spec)}")
    workload = _create(account, name, spec)
    job.record(cell.folder, job_id=workload.experiment.id, link=account.client.workload.url(workload))
    return workload


def _create(account: Account, name: str, spec: BeakerExperimentSpec) -> BeakerWorkload:
    """Make an experiment, unless an earlier try has, of which nobody heard: names are taken once only."""
    from beaker.exceptions import BeakerExperimentConflict, BeakerNotFoundError

    full, workspace = f"{account.user}/{name}", account.workspace

    def find_or_make(beaker: Beaker) -> BeakerWorkload:
        try:
            return beaker.workload.get(full)
        except BeakerNotFoundError:
            return beaker.experiment.create(spec=spec, name=name, workspace=workspace)

    try:
        return account.insist(find_or_make)
    except BeakerExperimentConflict:  # made between the two
        return account.ask(lambda beaker: beaker.workload.get(full))


# --- Cancelling ---------------------------------------------------------------------------------------


def cancel(sweep: Path, numbers: list[int] | None = None, timeout_sec: float = 180.0) -> list[int]:
    """Cancel the experiments of these cells (None: of all), wait for their end, and return those that are not over.

    Their jobs stop their trials, remove their sandboxes and copy the results first.
    """
    sweep = sweep.resolve()
    chosen = [
        number
        for number, one in refresh(sweep).items()
        if one.where in WAITED_FOR and (numbers is None or number in numbers)
    ]
    folders = [sweep / str(number) for number in chosen]
    for folder in folders:
        job.record(folder, cancelled_at=now())
    if folders:
        beaker_jobs.cancel(folders)
    return submitted.still_running(sweep, chosen, timeout_sec, refresh)
