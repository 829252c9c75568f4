"""Secrets of a Beaker workspace that jobs get as variables. A value leaves this process for Beaker only."""

from __future__ import annotations

import os

from ptb_runner.config import BeakerLauncherConfig
from ptb_runner.launch.beaker_client import Account


def missing(account: Account, launcher: BeakerLauncherConfig, wanted: dict[str, str]) -> list[str]:
    """What the workspace lacks of the secrets of some variables, unless it may be written and is set here."""
    told = []
    for name, secret in _absent(account, wanted).items():
        if launcher.write_secrets and os.environ.get(name):
            continue
        option = {"HF_TOKEN": "launcher.hf_token_secret", "PTB_REGISTRY_TOKEN": "launcher.registry_token_secret"}.get(
            name, f"launcher.beaker_secrets.{name}"
        )
        how = (
            f"set {name} here" if launcher.write_secrets else "launcher.write_secrets=true writes it from the variable"
        )
        null = ", or null for none" if name == "HF_TOKEN" else ""
        told.append(
            f"{option}={secret}: workspace {account.workspace_name} has no such secret\n"
            f"  name one that it has{null}; {how}{'' if launcher.write_secrets else f' {name} of this machine'}"
        )
    return told


def write(account: Account, launcher: BeakerLauncherConfig, wanted: dict[str, str]) -> None:
    """Write the secrets that the workspace lacks, from the variables that are set here; only if the user says so."""
    if not launcher.write_secrets:
        return
    for name, secret in _absent(account, wanted).items():
        value = os.environ[name]
        account.insist(
            lambda beaker, secret=secret, value=value: beaker.secret.write(secret, value, workspace=account.workspace)
        )


def _absent(account: Account, wanted: dict[str, str]) -> dict[str, str]:
    """Those of the secrets, by variable, that the workspace lacks."""
    held = account.ask(lambda beaker: {one.name for one in beaker.secret.list(workspace=account.workspace)})
    return {name: secret for name, secret in wanted.items() if secret not in held}
