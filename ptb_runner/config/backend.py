"""Where it is done: a class of options for each backend."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from omegaconf import MISSING

from ptb_runner.config.declare import option


class KeepModel(Enum):
    """Which trained models stay in the cell's folder."""

    never = "never"
    scored = "scored"
    always = "always"


class PodmanNetwork(Enum):
    """What a podman container's public network is."""

    own = "own"
    host = "host"


@dataclass
class BackendConfig:
    """The sandboxes in which agents and verifiers run."""

    kind: str = option(MISSING, "Which kind of sandbox.")
    keep_model: KeepModel = option(
        KeepModel.scored, "Which final_model folders stay in the cell's folder: never, scored or always.", result=False
    )
    hf_cache: str | None = option(
        "auto",
        "Where sandboxes find models and data sets of the hub, read-only: a host folder (on Modal, a volume) that "
        "`ptb cache hf` fills; auto: its usual one; null: they download everything.",
        result=False,
    )
    usd_per_gpu_hour: float = option(0.0, "Price of one GPU for one hour (dollars).", least=0, result=False)


@dataclass
class BubblewrapConfig(BackendConfig):
    """Sandboxes made of Linux namespaces."""

    kind: str = option("bubblewrap", "Which kind of sandbox.")
    scratch_dir: str | None = option(None, "Where the sandboxes' files live; null: the temp folder.", result=False)
    read_only_paths: list[str] = option(
        [], "Further host folders that sandboxes may read, at their own path; programs in their bin/ are found."
    )


@dataclass
class PodmanConfig(BackendConfig):
    """Podman containers on this machine."""

    kind: str = option("podman", "Which kind of sandbox.")
    image: str | None = option(None, "Image for tasks that bring none; a folder with a Dockerfile is built.")
    pull_tries: int = option(4, "Times an image is pulled until it succeeds.", least=1, result=False)
    nested: str = option(
        "auto", "Whether podman gets a configuration for restricted machines: auto, true or false.", result=False
    )
    network: PodmanNetwork = option(
        PodmanNetwork.own, "What a public network is: podman's own, or the host's (always in a restricted machine)."
    )
    gpu_devices: list[str] = option(["nvidia.com/gpu=all"], "CDI names of the GPUs of each sandbox.")
    run_args: list[str] = option([], "Further arguments of `podman run`, such as --shm-size=8g.")
    mirrors: dict[str, str] = option(
        {}, "Mirror to ask before a registry, by the registry's host; behind http:// if it has no TLS.", result=False
    )
    logins: list[str] = option([], "Registries that podman must be logged in to.", result=False)
    helper_dir: str | None = option(None, "Folder with a netavark that fits podman, if not the system's.", result=False)
    scratch_dir: str | None = option(
        None, "Where runner and containers share files; null: the temp folder.", result=False
    )


@dataclass
class BeakerConfig(PodmanConfig):
    """Podman containers nested in the Beaker job in which the cell's runner is."""

    kind: str = option("beaker", "Which kind of sandbox.")
    nested: str = option(
        "true", "Whether podman gets a configuration for restricted machines: auto, true or false.", result=False
    )


@dataclass
class DockerConfig(BackendConfig):
    """Docker containers on this machine, by Harbor's own docker environment."""

    kind: str = option("docker", "Which kind of sandbox.")
    image: str | None = option(None, "Image for tasks that bring none.")


@dataclass
class ModalConfig(BackendConfig):
    """Modal sandboxes."""

    kind: str = option("modal", "Which kind of sandbox.")
    usd_per_gpu_hour: float = option(3.95, "Price of one GPU for one hour (dollars).", least=0, result=False)
    image: str | None = option(
        None, "Image for tasks that bring none; a folder with a Dockerfile is built; null: Python 3.12 with NumPy."
    )
    gpu: str | None = option(
        None, "GPU type, such as H200 or A100-80GB; null: the benchmark's first. H100 never becomes an H200."
    )
    region: list[str] = option([], "Regions in which sandboxes may run, such as us-east; empty: any.", result=False)
    cloud: str | None = option(None, "Cloud in which they run: aws, gcp or oci; null: any.", result=False)
    secrets: list[str] = option([], "Names of Modal secrets whose variables both sandboxes get.")
    registry_secret: str | None = option(None, "Name of a Modal secret to pull images with.", result=False)
    app: str = option("ptb-runner", "Modal app in which sandboxes are made.", result=False)
    creations_per_sec: float = option(
        4.0, "Sandboxes that a runner makes a second; Modal allows about 5.", above=0, most=5, result=False
    )
    max_sandboxes: int = option(100, "Sandboxes that your Modal plan runs at once.", least=1, result=False)
    max_gpus: int = option(10, "GPUs that your Modal plan gives at once.", least=1, result=False)


BACKENDS: dict[str, type[BackendConfig]] = {
    "bubblewrap": BubblewrapConfig,
    "podman": PodmanConfig,
    "docker": DockerConfig,
    "modal": ModalConfig,
    "beaker": BeakerConfig,
}
