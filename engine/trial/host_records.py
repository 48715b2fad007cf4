"""What result.json says of the nodes and of the scheduler's job."""

from __future__ import annotations

from engine.schema.evidence import HostReading, SlurmIdentity
from engine.trial.json_fields import Fields

_MOST_NODES = 4096


def read_hosts(result: Fields) -> tuple[HostReading, ...]:
    """One reading a node, by node rank; entries without a usable node rank are noted and left out."""
    found: dict[int, HostReading] = {}
    for entry in result.children("nodes"):
        node_rank = entry.integer("node_rank")
        if node_rank is None or not 0 <= node_rank < _MOST_NODES or node_rank in found:
            result.notes.add(f"{entry.where}: no node rank of its own")
            continue
        found[node_rank] = HostReading(
            node_rank=node_rank,
            name=entry.text("name"),
            host=entry.text("host"),
            reported=entry.boolean("reported"),
            longest_gap_s=entry.number("longest_gap_s"),
            cpus=entry.integer("cpus"),
            devices=entry.integer("devices"),
            problem=entry.text("problem"),
        )
    return tuple(found[node_rank] for node_rank in sorted(found))


def read_slurm(result: Fields) -> SlurmIdentity | None:
    """The Slurm job of the agents, None without one."""
    fields = result.child("slurm")
    if fields is None:
        return None
    return SlurmIdentity(
        job_id=_word(fields, "job_id"), step_id=_word(fields, "step_id"), restarts=fields.integer("restarts")
    )


def _word(fields: Fields, name: str) -> str | None:
    """An identity, written as a string or as a number."""
    if isinstance(fields.data.get(name), int):
        number = fields.integer(name)
        return None if number is None else str(number)
    return fields.text(name)
