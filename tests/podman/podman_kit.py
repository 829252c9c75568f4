"""What tests with a real podman share."""

from __future__ import annotations

import functools
import json
import os
import subprocess
from pathlib import Path

from ptb_runner.sandbox import podman_machine, podman_nested
from ptb_runner.sandbox.podman_cli import Podman
from tests.run_kit import TASK_TOML, make_task

IMAGE = "localhost/ptb-base:bookworm"
PODMAN = ("backend=podman", f"backend.image={IMAGE}", "retry.wait_sec=0")


@functools.cache
def podman() -> Podman:
    """The podman that the backend uses here."""
    nested = bool(podman_nested.restrictions())
    return Podman(podman_nested.variables(nested, podman_machine.version(), None, {}))


@functools.cache
def make_image() -> str:
    script = Path(__file__).with_name("base_image.sh")
    environment = {**os.environ, **podman().variables}
    done = subprocess.run([script], env=environment, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    return IMAGE


def containers(*filters: str) -> list[str]:
    """The names of the containers that podman knows, running or not, by default ours."""
    chosen = [word for one in filters or ("label=ptb.owner",) for word in ("--filter", one)]
    return podman().now("ps", "--all", *chosen, "--format", "{{.Names}}").stdout.split()


def images() -> set[str]:
    return set(podman().now("images", "--format", "{{.Repository}}:{{.Tag}}").stdout.split())


def dockerfile_task(folder: Path, dockerfile: str, test: str, toml: str = TASK_TOML) -> Path:
    task = make_task(folder, test, toml)
    (task / "environment" / "Dockerfile").write_text(dockerfile)
    return task


def podman_calls(log: Path) -> list[list[str]]:
    return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []


# --- A task of two containers -------------------------------------------------------------------------

COMPOSE = f"""
services:
  main: {{image: "{IMAGE}", command: [sh, -c, sleep infinity], depends_on: [web]}}
  web:
    image: "{IMAGE}"
    command: [sh, -c, "mkdir -p /srv && echo from-web > /srv/word && cd /srv && exec python3 -m http.server 18765"]
"""
TWO_CONTAINERS = f"""
schema_version = "1.1"
[task]
name = "own/compose"
[environment]
docker_image = "{IMAGE}"
workdir = "/root"
"""
ASK = """
python3 - <<END > answer.txt
import time, urllib.request
for _ in range(50):
    try: print(urllib.request.urlopen("http://web:18765/word").read().decode().strip()); break
    except OSError: time.sleep(0.1)
END
"""
