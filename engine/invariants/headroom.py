"""Memory headroom: part of the rule for "verified", not an invariant."""

from __future__ import annotations

from engine.schema.evidence import RankEvidence, RunEvidence
from engine.units import gib


def peak_memory_bytes(run: RunEvidence) -> int | None:
    """Highest peak of any rank: private data on cpu (probe or agent, the larger), the allocator's on cuda."""
    peaks = [peak for rank in run.ranks for peak in _peaks(rank, run.device)]
    return max(peaks, default=None)


def _peaks(rank: RankEvidence, device: str) -> list[int]:
    if device == "cuda":
        readings = [update.memory.cuda_allocated_peak_bytes for update in rank.updates]
    else:
        readings = [update.memory.vm_data_bytes for update in rank.updates]
        readings.append(None if rank.agent is None else rank.agent.peak_vm_data_bytes)
    return [value for value in readings if value is not None]


def headroom_kept(run: RunEvidence, *, limit_bytes: int | None, headroom: float) -> tuple[bool | None, str]:
    """Whether the fraction `headroom` of the limit stayed free; None where limit or peak is not known.

    Returns:
        The answer and a sentence with the numbers.
    """
    peak = peak_memory_bytes(run)
    if limit_bytes is None:
        return None, "no memory limit is set"
    if peak is None:
        return None, "the peak memory was not seen"
    allowed = limit_bytes * (1.0 - headroom)
    words = f"peak {gib(peak):.3f} GiB of {gib(limit_bytes):.3f} GiB, {headroom:.0%} of it must stay free"
    return peak <= allowed, words
