"""Making a Beaker job ready for containers, in the order in which one thing needs the other.

Sub-containers must be allowed; podman gets the configuration for restricted machines; it is logged in to registries;
mirrors must have an image that is needed; and one container must run for a second before hours of GPUs are spent.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import subprocess
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path

from ptb_runner import dataset
from ptb_runner.backend import podman as backend
from ptb_runner.cell import Cell
from ptb_runner.config import BeakerLauncherConfig, PodmanConfig
from ptb_runner.explain import UsageError
from ptb_runner.sandbox import manifests, podman_machine
from ptb_runner.sandbox.podman_cli import Podman

log = logging.getLogger(__name__)

TOKEN = "PTB_REGISTRY_TOKEN"
_ALLOWED = "BEAKER_ALLOW_SUBCONTAINERS"
_ANSWER_SEC, _PULL_SEC = 120.0, 600.0
_FROM = re.compile(r"^\s*FROM\s+(?:--\S+\s+)*(\S+)", re.IGNORECASE | re.MULTILINE)


@contextlib.contextmanager
def ready(cell: Cell) -> Iterator[None]:
    """The job is ready for the cell's containers while this lasts; then logins and podman's service go.

    Raises UsageError, in two lines, for the first thing that is wrong.
    """
    config = cell.config
    if not isinstance(config.backend, PodmanConfig):
        yield
        return
    if os.environ.get(_ALLOWED) != "1":
        raise UsageError(
            f"containers are not allowed in this job: {_ALLOWED} is not 1\n"
            "  submit it with launcher=beaker, which sets it, and leave it out of launcher.env"
        )
    made = backend.set_up(config)
    with contextlib.ExitStack() as afterwards:
        if made.service:
            afterwards.callback(made.service.terminate)
        for name, failed, text in made.steps:
            if failed:
                raise UsageError(f"{name}: {text}")
            log.info("%s: %s", name, text)
        os.environ.update(made.exports)
        podman = Podman(made.exports)
        afterwards.enter_context(_logged_in(podman, config.launcher))
        images = list(dict.fromkeys(_images(cell)))
        for registry, mirror in config.backend.mirrors.items():
            _probe(registry, mirror, images)
        _try_container(podman, images)
        yield


# --- Registries ---------------------------------------------------------------------------------------


@contextlib.contextmanager
def _logged_in(podman: Podman, launcher: object) -> Iterator[None]:
    """Logged in to the launcher's registry, by a file in memory that podman and docker's programs read alike."""
    token = os.environ.pop(TOKEN, None)
    if not isinstance(launcher, BeakerLauncherConfig) or not launcher.registry:
        yield
        return
    if not token:
        raise UsageError(
            f"launcher.registry={launcher.registry}: the job has no {TOKEN}\n"
            "  launcher.registry_token_secret: name the Beaker secret with the token"
        )
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(prefix="ptb-login-", dir=memory if memory.is_dir() else None) as folder:
        os.environ |= {"REGISTRY_AUTH_FILE": f"{folder}/config.json", "DOCKER_CONFIG": folder}
        command = ["login", "--username", launcher.registry_user or "", "--password-stdin", launcher.registry]
        code, said = _ask(podman, *command, given=token)
        if code:
            raise UsageError(
                f"podman cannot log in to {launcher.registry} as {launcher.registry_user}: {said.replace(token, '***')}"
                "\n  launcher.registry_user, launcher.registry_token_secret: is the token still good?"
            )
        log.info("login: %s as %s", launcher.registry, launcher.registry_user)
        try:
            yield
        finally:
            for name in ("REGISTRY_AUTH_FILE", "DOCKER_CONFIG"):
                del os.environ[name]


def _probe(registry: str, mirror: str, images: list[str]) -> None:
    """Ask a mirror for the manifest of an image that is needed: one that is up may all the same not have it."""
    paths = (path for image in images if (path := _path_at(registry, image)))
    if (path := next(paths, None)) is None:
        log.info("mirror: %s is not asked, no image of %s is known yet", mirror, registry)
        return
    if reason := manifests.fault(mirror, path):
        raise UsageError(
            f"the mirror {mirror} does not give {path}: {reason}\n"
            f"  backend.mirrors: mend or leave out the one of {registry}"
        )
    log.info("mirror: %s gives %s", mirror, path)


def _path_at(registry: str, image: str) -> str | None:
    """What an image is called at its registry; None: it is of another one."""
    if image.startswith(f"{registry}/"):
        return image.removeprefix(f"{registry}/")
    first = image.partition("/")[0]
    has_host = "/" in image and (first == "localhost" or "." in first or ":" in first)
    if has_host or not registry.startswith("docker."):  # Docker's own has the images that are named without a host
        return None
    return image if "/" in image else f"library/{image}"


def _images(cell: Cell) -> Iterator[str]:
    """The images that the cell's sandboxes are made of, as far as its files name them."""
    image = getattr(cell.config.backend, "image", None)
    if image:
        yield image
    for task in dataset.folders(cell.task):
        settings = tomllib.loads((task / "task.toml").read_text()).get("environment", {})
        if brought := settings.get("docker_image"):
            yield brought
        recipe = task / "environment" / "Dockerfile"
        if not brought and recipe.is_file() and (found := _FROM.search(recipe.read_text())):
            yield from (name for name in [found[1]] if "$" not in name and name != "scratch")


# --- One container ------------------------------------------------------------------------------------


def _try_container(podman: Podman, images: list[str]) -> None:
    """Run a container on the host's network for a second."""
    if not images:
        log.info("container: none is tried, no image is known before the tasks are built")
        return
    failed, text = podman_machine.trial_run(podman, images[0], network="host", pull_sec=_PULL_SEC, run_sec=1)
    if failed:
        reason = text.splitlines()[-1].removeprefix(f"a container of {images[0]} does not run: ")
        raise UsageError(f"no container of {images[0]} runs in this job: {reason}\n  is it the right image?")
    log.info("container: %s", text)


def _ask(podman: Podman, *arguments: str, given: str = "") -> tuple[int, str]:
    """Exit code of podman, and the end of what it said, in a line."""
    try:
        done = podman.now(*arguments, timeout_sec=_ANSWER_SEC, given=given)
    except (OSError, subprocess.TimeoutExpired) as error:
        return 1, str(error)
    return done.returncode, " ".join((done.stderr or done.stdout).split())[-300:]
