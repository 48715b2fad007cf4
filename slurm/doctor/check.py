"""One check: what was found, what it means, what to do. Standard library only: checks run on nodes too."""

from __future__ import annotations

import dataclasses
from typing import Any

STATUSES = ("ok", "warn", "fail", "skipped")
ASK_A_NODE = "`infrarsi doctor --on-node` finds out"


@dataclasses.dataclass(frozen=True)
class Check:
    """The answer of one check.

    Args:
        name: Stable name, for programs.
        group: The heading it stands under.
        status: ok, warn (works, with a drawback), fail (will not work) or skipped (nothing to check here).
        found: What is there.
        meaning: What follows from it.
        hint: The next step; empty where nothing is to be done.
    """

    name: str
    group: str
    status: str
    found: str
    meaning: str = ""
    hint: str = ""

    def value(self) -> dict[str, str]:
        """As JSON."""
        return dataclasses.asdict(self)

    def on(self, node: str) -> Check:
        """The same, told of a node."""
        return dataclasses.replace(self, name=f"node/{self.name}", group=f"node {node}")


def check_of(value: dict[str, Any]) -> Check:
    """A check from its JSON; what is missing is empty."""
    names = [field.name for field in dataclasses.fields(Check)]
    return Check(**{name: str(value.get(name, "")) for name in names})
