"""What things cost on Modal by the hour, as listed in 2026; for what `ptb doctor` shows, not for any bill."""

from __future__ import annotations

GPU_USD = {
    "B200": 6.25,
    "H200": 4.54,
    "H100": 3.95,
    "A100-80GB": 2.50,
    "A100-40GB": 2.10,
    "A100": 2.10,
    "L40S": 1.95,
    "A10G": 1.10,
    "A10": 1.10,
    "L4": 0.80,
    "T4": 0.59,
}
CORE_USD = 0.142  # of a sandbox; three times that of a function
GIB_USD = 0.024


def usd_per_hour(gpu: str | None, gpus: int, cores: float, memory_mb: float) -> float:
    """What a sandbox with these resources costs at least; a GPU without a known price counts as nothing."""
    each = GPU_USD.get((gpu or "").rstrip("!").upper(), 0.0)
    return each * gpus + CORE_USD * cores + GIB_USD * memory_mb / 1024
