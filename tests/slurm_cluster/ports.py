"""Free ports for the daemons of a cluster, below the range from which the kernel takes ports by itself."""

from __future__ import annotations

import random
import socket
from pathlib import Path

_RANGE_FILE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_LOWEST = 10_000
_ATTEMPTS = 500


def free_ports(count: int) -> list[int]:
    """Ports that can be bound on every address now, all different.

    Raises:
        RuntimeError: too few were found.
    """
    ceiling = int(_RANGE_FILE.read_text().split()[0]) if _RANGE_FILE.exists() else 32_768
    draw = random.SystemRandom()
    found: list[int] = []
    for _ in range(_ATTEMPTS):
        port = draw.randrange(_LOWEST, max(ceiling, _LOWEST + 2_000))
        if port not in found and _is_free(port):
            found.append(port)
        if len(found) == count:
            return found
    raise RuntimeError(f"no {count} free ports between {_LOWEST} and {ceiling}")


def _is_free(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True


def listens(port: int) -> bool:
    """Whether something accepts connections on this machine's port."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.settimeout(0.5)
        return probe.connect_ex(("127.0.0.1", port)) == 0
