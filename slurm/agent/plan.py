"""spec.json as the agent sees it: a plain record, because pydantic may be missing on the node."""

from __future__ import annotations

import json
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any


class SpecError(Exception):
    """spec.json cannot be used; the message names the file, the key and the rule."""


@dataclass(frozen=True)
class LaunchPlan:
    """One run of the training job: engine/schema/plan.py without its checks. Times in seconds."""

    version: int
    trial_id: str
    token: str
    trial_dir: str
    workdir: str
    output_dir: str
    probe_dir: str
    python: str
    launcher: str
    command: list[str]
    setup: list[str]
    env: dict[str, str]
    unset: list[str]
    nodes: int
    ranks_per_node: int
    cpus_per_rank: int
    device: str
    memory_limit_bytes: int | None
    total_updates: int
    measured_updates: int
    probe: dict[str, Any]
    start_timeout_s: float
    update_timeout_s: float
    total_timeout_s: float
    srun_args: list[str] = field(default_factory=list)

    @property
    def world_size(self) -> int:
        """Number of ranks of the whole trial."""
        return self.nodes * self.ranks_per_node

    @property
    def folder(self) -> Path:
        """The trial folder."""
        return Path(self.trial_dir)


def load_plan(path: Path) -> LaunchPlan:
    """Read spec.json.

    Raises:
        SpecError: not readable, not JSON, a key is missing or the version is another one.
    """
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise SpecError(f"{path}: cannot be read as JSON: {error}") from error
    if not isinstance(raw, dict):
        raise SpecError(f"{path}: must hold one JSON object")
    known = fields(LaunchPlan)
    missing = [each.name for each in known if each.default_factory is MISSING and each.name not in raw]
    if missing:
        raise SpecError(f"{path}: missing keys: {', '.join(missing)}")
    if raw["version"] != 1:
        raise SpecError(f"{path}: version: {raw['version']!r} is not supported; rule: 1")
    return LaunchPlan(**{each.name: raw[each.name] for each in known if each.name in raw})
