"""Ports that nobody uses and that the kernel does not hand out by itself."""

from __future__ import annotations

import hashlib
import random
import socket
from pathlib import Path

LOOPBACK = "127.0.0.1"
CONTROL_CANDIDATES = 10

_PORT_RANGE_FILE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_LOWEST_PORT = 15000
_CONTROL_CEILING = 32000  # the same on every node, whatever range their kernels use
_PORT_ATTEMPTS = 200


class PortError(Exception):
    """No port could be bound."""


def control_ports(token: str) -> list[int]:
    """The ports on which the head of a trial may listen, in the order in which it tries them."""
    seed = int.from_bytes(hashlib.sha256(token.encode()).digest(), "big")
    return random.Random(seed).sample(range(_LOWEST_PORT, _CONTROL_CEILING), CONTROL_CANDIDATES)


def free_port(address: str = LOOPBACK, besides: frozenset[int] = frozenset()) -> int:
    """A port that can be bound now, below the range from which the kernel takes ports by itself.

    Args:
        address: The interface on which it will be used; it must be free on all of them.
        besides: Ports that were tried before.

    Raises:
        PortError: none was free.
    """
    try:
        ceiling = int(_PORT_RANGE_FILE.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        ceiling = 32768
    generator = random.SystemRandom()
    for _ in range(_PORT_ATTEMPTS):
        port = generator.randrange(min(_LOWEST_PORT, ceiling - 1000), ceiling)
        if port not in besides and is_free(address, port):
            return port
    raise PortError(f"no free port below {ceiling} was found on {address} in {_PORT_ATTEMPTS} attempts")


def is_free(address: str, port: int) -> bool:
    """Whether a port can be bound on this address and on all addresses at once."""
    for place in (address, ""):
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            try:
                probe.bind((place, port))
            except OSError:
                return False
    return True
