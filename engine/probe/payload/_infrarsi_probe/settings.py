"""What the node agent asks of the probe, read from the environment."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Optional

RANK_NAMES = ("RANK", "LOCAL_RANK", "WORLD_SIZE")


class Settings:
    """The parsed environment of one rank."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        """Raises KeyError or ValueError where the environment is not one that the agent writes."""
        wanted = json.loads(environment["INFRARSI_PROBE"])
        self.socket_path: str = environment["INFRARSI_PROBE_SOCKET"]
        self.rank = int(environment["RANK"])
        self.local_rank = int(environment["LOCAL_RANK"])
        self.world = int(environment["WORLD_SIZE"])
        self.total_updates = int(wanted["total_updates"])
        self.nonce: str = wanted["nonce"]
        seed = wanted.get("perturb_ulp_seed")
        self.perturb_ulp_seed: Optional[int] = None if seed is None else int(seed)
        self.signature = bool(wanted.get("signature", True))
        self.stop = bool(wanted.get("stop", True))


def is_rank(environment: Mapping[str, str]) -> bool:
    """Whether this process was started as a training rank under an agent."""
    return "INFRARSI_PROBE" in environment and all(environment.get(name) for name in RANK_NAMES)
