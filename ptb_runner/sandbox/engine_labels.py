"""Who owns a container: a label that says so, and whether that runner is still there."""

import os
import socket
from pathlib import Path

from ptb_runner.sandbox import scratch

LABEL = "ptb.owner"


def labels(trial_dir: Path) -> dict[str, str]:
    """What everything that an engine makes for a trial is labelled with."""
    return {LABEL: owner(), "ptb.run": str(trial_dir.parent.parent), "ptb.trial": trial_dir.name}


def owner() -> str:
    """This process, as it stands in labels: machine since its last boot, process namespace, number, start."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    namespace = Path("/proc/self/ns/pid").stat().st_ino
    return f"{socket.gethostname()} {boot} {namespace} {os.getpid()} {scratch.start_time(os.getpid())}"


def is_dead(label: str) -> bool:
    """Whether the owner named by a label is known to be gone; of one elsewhere nothing is known."""
    host, boot, namespace, pid, started = (label.split(" ") + [""] * 5)[:5]
    own_host, own_boot, own_namespace, *_ = owner().split(" ")
    if host != own_host or not pid.isdigit():
        return False
    if boot != own_boot:
        return True
    return namespace == own_namespace and str(scratch.start_time(int(pid))) != started
