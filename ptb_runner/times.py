"""Times as people read them."""

from __future__ import annotations


def duration(hours: float) -> str:
    """Hours as people say them: `10 hours`, `1 hour`, `30 minutes`, `1 hour 30 minutes`, `45 seconds`."""
    seconds = round(hours * 3600)
    parts = [(seconds // 3600, "hour"), (seconds // 60 % 60, "minute")]
    if seconds < 3600:
        parts.append((seconds % 60, "second"))
    return " ".join(f"{count} {unit}{'s' if count != 1 else ''}" for count, unit in parts if count) or "no time"


def clock(seconds: float | None) -> str:
    """Seconds as 4.2s, 3:05 or 10:00:07; - for None."""
    if seconds is None:
        return "-"
    if seconds < 60:
        return f"{seconds:.1f}s"
    whole = int(seconds)
    hours, minutes = whole // 3600, whole // 60 % 60
    return f"{hours}:{minutes:02d}:{whole % 60:02d}" if hours else f"{minutes}:{whole % 60:02d}"
