"""Under which addresses the head of a trial may be reached. Node names often resolve nowhere."""

from __future__ import annotations

import contextlib
import fcntl
import json
import socket
import struct
import threading
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from slurm.agent.node import NodeIdentity, host_names
from slurm.agent.ports import LOOPBACK

_SIOCGIFADDR = 0x8915


def own_addresses() -> list[str]:
    """The IPv4 addresses of this machine's interfaces, the loopback last."""
    found = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode()[:15])
            with contextlib.suppress(OSError):
                answer = fcntl.ioctl(sock.fileno(), _SIOCGIFADDR, request)
                found.append(socket.inet_ntoa(answer[20:24]))
    return sorted(dict.fromkeys([*found, LOOPBACK]), key=lambda address: address.startswith("127."))


def best_address(reached: Iterable[str]) -> str:
    """The head's address for everybody: the one most nodes reached it by, a loopback only among itself."""
    count = Counter(reached)
    if not count:
        return LOOPBACK
    return max(count, key=lambda address: (not address.startswith("127."), count[address]))


class HeadPlaces:
    """Where to look for the head: what it wrote down itself, what the scheduler says, names that resolve.

    Names are resolved in the background, because a broken resolver takes its time.
    """

    def __init__(self, job_file: Path, token: str, ports: Sequence[int], environ: Mapping[str, str]) -> None:
        self._job_file = job_file
        self._token = token
        self._ports = list(ports)
        numbers = (environ.get("SLURM_LAUNCH_NODE_IPADDR"), environ.get("SLURM_SRUN_COMM_HOST"))
        self._addresses = [address for address in numbers if address]
        self._resolved: list[str] = []

    def resolve(self, node: NodeIdentity) -> None:
        """Start to look up the names of the head's node."""
        names = host_names(node.nodelist)[:1] if node.nodelist else []
        threading.Thread(target=self._resolve, args=(names,), name="resolve", daemon=True).start()

    def _resolve(self, names: Sequence[str]) -> None:
        for name in names:
            with contextlib.suppress(OSError):
                for entry in socket.getaddrinfo(name, None, socket.AF_INET, socket.SOCK_STREAM):
                    self._resolved.append(str(entry[4][0]))

    def candidates(self) -> list[tuple[str, list[int]]]:
        """Addresses in the order of promise, each with the ports to try."""
        told, port = self._told()
        found = [(address, [port]) for address in told if port is not None]
        others = [*self._addresses, *list(self._resolved), LOOPBACK]
        return found + [(address, self._ports) for address in dict.fromkeys(others)]

    def _told(self) -> tuple[list[str], int | None]:
        """What the head wrote into job.json, as soon as this node's file system shows it."""
        try:
            job: Any = json.loads(self._job_file.read_text(encoding="utf-8"))
            control = job["control"] if job["token"] == self._token else {}
            return [str(address) for address in control["addresses"]], int(control["port"])
        except (OSError, ValueError, KeyError, TypeError):
            return [], None
