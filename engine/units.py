"""Units: bytes and GiB, nanoseconds and seconds, ranks and GPU-hours."""

from __future__ import annotations

BYTES_PER_GIB = 1 << 30
NS_PER_S = 1_000_000_000
SECONDS_PER_HOUR = 3600.0


def gib(n_bytes: float) -> float:
    """Bytes to GiB."""
    return n_bytes / BYTES_PER_GIB


def gpu_hours(wall_s: float, ranks: int) -> float:
    """Occupancy of an allocation; on CPU tasks a "GPU" is a rank."""
    return wall_s * ranks / SECONDS_PER_HOUR
