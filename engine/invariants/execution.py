"""Execution: the run ended cleanly, did every update, on the same hardware, within its scope."""

from __future__ import annotations

from collections import Counter

from engine.invariants.comparison import Comparison
from engine.invariants.findings import Findings
from engine.schema.evidence import RankEvidence, RunEvidence
from engine.schema.run_view import RunView
from engine.units import NS_PER_S, gib

CORES_TOLERANCE = 1.25
"""Cores in use may exceed those allocated by this factor: communication threads."""

CPU_RESOLUTION_S = 0.02
"""CPU time from /proc comes in ticks of 10 ms, at both ends of a window."""

_SHOWN_ERRORS = 3


def clean_exit(comparison: Comparison, findings: Findings) -> None:
    """Every process of the launcher and every rank ended by itself, without an uncaught exception."""
    run = comparison.candidate.run
    if run.ended != "exited":
        detail = f": {run.launch_error}" if run.launch_error else ""
        findings.fail(
            f"the run ended by {run.ended.replace('_', ' ')}{detail}", expected="exited", observed=run.ended
        )
    elif run.signal is not None:
        findings.fail(
            f"the launcher was killed by signal {run.signal}",
            expected="exit code 0",
            observed=f"signal {run.signal}",
        )
    elif run.exit_code is None:
        if comparison.baseline.run.exit_code is None:
            findings.unseen("the exit code was not seen in either run", essential=True)
        else:
            findings.lost("the exit code")
    elif run.exit_code != 0:
        findings.fail(
            f"the launcher exited with code {run.exit_code}",
            expected="exit code 0",
            observed=f"exit code {run.exit_code}",
        )
    for rank in run.ranks:
        _rank_exit(rank, findings)
    findings.passed(f"exit code 0 and no uncaught exception on {len(run.ranks)} ranks")


def _rank_exit(rank: RankEvidence, findings: Findings) -> None:
    code = None if rank.agent is None else rank.agent.exit_code
    if code not in (None, 0):
        findings.fail(
            f"rank {rank.rank} exited with code {code}", expected="exit code 0", observed=f"exit code {code}"
        )
    if rank.exception is None:
        return
    text = (
        f"rank {rank.rank}: {rank.exception.type} in {rank.exception.phase}: {rank.exception.message[:160]}"
    )
    if rank.exception.phase == "uncaught" or rank.end is None:
        findings.fail(text, expected="no uncaught exception", observed=rank.exception.type)
    else:
        findings.note(f"caught by the script: {text}")


def steps_completed(comparison: Comparison, findings: Findings) -> None:
    """Hello, every wanted update and an end record from every rank, on an unbroken record stream."""
    view = comparison.candidate
    run, wanted = view.run, view.run.total_updates
    for number in range(min(run.world_size, 1 << 16)):
        rank = run.rank(number)
        if rank is None:
            findings.fail(
                f"rank {number} left no trace",
                expected=f"records from {run.world_size} ranks",
                observed="none",
            )
        else:
            _rank_steps(rank, wanted, findings)
    for rank in run.ranks:
        if not 0 <= rank.rank < run.world_size:
            findings.fail(
                f"records of rank {rank.rank} where {run.world_size} ranks were asked for",
                expected=f"ranks 0 to {run.world_size - 1}",
                observed=f"rank {rank.rank}",
            )
    if wanted < 1 or run.world_size < 1:
        findings.unseen("the plan asked for no update", essential=True)
    findings.passed(f"{wanted} updates on each of {run.world_size} ranks")


def _rank_steps(rank: RankEvidence, wanted: int, findings: Findings) -> None:
    if rank.hello is None:
        findings.fail(f"rank {rank.rank} never said hello", expected="a hello record", observed="none")
    indices = [update.index for update in rank.updates]
    if len(indices) < wanted or indices != list(range(len(indices))):
        findings.fail(
            f"rank {rank.rank} reported {len(indices)} updates of {wanted}",
            expected=f"updates 0 to {wanted - 1}",
            observed=f"{len(indices)} updates, last {indices[-1] if indices else 'none'}",
        )
    if rank.end is None:
        findings.fail(f"rank {rank.rank} sent no end record", expected="an end record", observed="none")
    elif rank.end.updates is not None and rank.end.updates != len(indices):
        findings.fail(
            f"rank {rank.rank} counts {rank.end.updates} updates at its end, {len(indices)} were received",
            expected=f"{len(indices)} updates",
            observed=f"{rank.end.updates} updates",
        )
    counted = None if rank.agent is None else rank.agent.updates
    if counted is not None and counted != len(indices):
        findings.fail(
            f"the node agent counted {counted} updates of rank {rank.rank}, its records hold {len(indices)}",
            expected=f"{counted} updates",
            observed=f"{len(indices)} updates",
        )
    for error in rank.protocol_errors[:_SHOWN_ERRORS]:
        findings.fail(
            f"the record stream of rank {rank.rank} is broken: {error[:200]}",
            expected="an unbroken record stream",
            observed=error[:200],
        )


def allocation_identity(comparison: Comparison, findings: Findings) -> None:
    """The same device kind, nodes and GPUs (on cpu: no more cores); the product counts, not the layout."""
    before, after = comparison.baseline.run, comparison.candidate.run
    if before.device != after.device:
        findings.fail(
            f"runs on {after.device} instead of {before.device}",
            expected=before.device,
            observed=after.device,
        )
    nodes = comparison.context.nodes or before.nodes
    if nodes != after.nodes:
        findings.fail(
            f"uses {after.nodes} nodes instead of {nodes}",
            expected=f"{nodes} nodes",
            observed=f"{after.nodes} nodes",
        )
    if after.device == "cuda":
        _same_gpus(comparison, findings)
    else:
        _same_cores(comparison, findings)
    _same_spread(before, after, findings)
    _world_seen(after, findings)
    _limit_stands(comparison, findings)


def _same_spread(before: RunEvidence, after: RunEvidence, findings: Findings) -> None:
    """Several nodes: as many machines as asked for, and as many ranks on each as in the baseline."""
    if after.nodes < 2:
        return
    machines = set(after.node_names)
    if not machines:
        findings.unseen("the nodes that the ranks ran on")
    elif len(machines) < after.nodes:
        findings.fail(
            f"runs on {len(machines)} machines instead of {after.nodes}",
            expected=f"{after.nodes} machines",
            observed=f"{len(machines)} machines",
        )
    old, new = _ranks_per_node(before), _ranks_per_node(after)
    if old is None:
        findings.unseen("the ranks on each node of the baseline")
    elif new is None:
        findings.lost("the ranks on each node")
    elif old != new:
        findings.fail(
            f"spreads its ranks over the nodes as {_joined(new)} instead of {_joined(old)}",
            expected=f"{_joined(old)} ranks",
            observed=f"{_joined(new)} ranks",
        )
    else:
        findings.passed(f"{_joined(new)} ranks on {len(new)} nodes")


def _ranks_per_node(run: RunEvidence) -> list[int] | None:
    """How many ranks each node ran, sorted; None where a rank's node is not known."""
    nodes = [rank.node for rank in run.ranks]
    if not nodes or None in nodes:
        return None
    return sorted(Counter(nodes).values())


def _joined(counts: list[int]) -> str:
    return " + ".join(map(str, counts))


def _same_gpus(comparison: Comparison, findings: Findings) -> None:
    before, after = comparison.baseline, comparison.candidate
    wanted = comparison.context.world_size or before.run.world_size
    if after.run.world_size != wanted:
        findings.fail(
            f"uses {after.run.world_size} GPUs instead of {wanted}",
            expected=f"{wanted} GPUs",
            observed=f"{after.run.world_size} GPUs",
        )
    old, new = _device_names(before), _device_names(after)
    if old and not new:
        findings.lost("the GPU model", after.why_unseen("device_name"))
    elif old and old != new:
        findings.fail(
            f"runs on {', '.join(sorted(new))} instead of {', '.join(sorted(old))}",
            expected=", ".join(sorted(old)),
            observed=", ".join(sorted(new)),
        )
    elif not old:
        findings.unseen(f"the GPU model: {before.why_unseen('device_name')}")


def _device_names(view: RunView) -> set[str]:
    return {rank.torch.device_name for rank in view.ranks if rank.torch and rank.torch.device_name}


def _same_cores(comparison: Comparison, findings: Findings) -> None:
    before, after = comparison.baseline.run, comparison.candidate.run
    old, new = before.world_size * before.cpus_per_rank, after.world_size * after.cpus_per_rank
    if new > old:
        findings.fail(
            f"asks for {new} cores instead of {old}", expected=f"{old} cores", observed=f"{new} cores"
        )
    used_before, used_after = _cores_in_use(before), _cores_in_use(after)
    if used_after is None:
        if used_before is None:
            findings.unseen("cores in use (the agent saw no CPU time over the window)")
        else:
            findings.lost("CPU time over the window")
        return
    allowed = CORES_TOLERANCE * max(old, used_before or 0.0)
    if used_after > allowed:
        findings.fail(
            f"keeps {used_after:.2f} cores busy where {old} are allocated",
            expected=f"at most {allowed:.2f} cores busy",
            observed=f"{used_after:.2f} cores busy",
        )
    else:
        findings.passed(f"{used_after:.2f} of {old} cores busy over the window")


def _cores_in_use(run: RunEvidence) -> float | None:
    """Cores that all ranks together kept busy at the very least over the window, on the agent's clock."""
    cores = 0.0
    for rank in run.ranks:
        window = None if rank.agent is None else rank.agent.window
        if window is None or window.cpu_s is None or window.elapsed_ns is None or window.elapsed_ns <= 0:
            return None
        surely = max(0.0, window.cpu_s - CPU_RESOLUTION_S)
        cores += surely / (window.elapsed_ns / NS_PER_S)
    return cores if run.ranks else None


def _world_seen(run: RunEvidence, findings: Findings) -> None:
    worlds = {rank.hello.world for rank in run.ranks if rank.hello and rank.hello.world is not None}
    if worlds - {run.world_size}:
        findings.fail(
            f"the ranks see a world of {', '.join(map(str, sorted(worlds)))} instead of {run.world_size}",
            expected=f"world size {run.world_size}",
            observed=f"world size {', '.join(map(str, sorted(worlds)))}",
        )
    elif worlds:
        findings.passed(f"{run.nodes} nodes, {run.world_size} ranks on {run.device}")
    else:
        findings.unseen("the world size that the ranks see (no hello)", essential=True)


def _limit_stands(comparison: Comparison, findings: Findings) -> None:
    run, limit = comparison.candidate.run, comparison.candidate.run.memory_limit_bytes
    before = comparison.baseline.run.memory_limit_bytes
    if before is not None and (limit is None or limit > before):
        findings.fail(
            "the memory limit per rank is higher than the baseline's",
            expected=f"{gib(before):.3f} GiB",
            observed="none" if limit is None else f"{gib(limit):.3f} GiB",
        )
    if limit is None or run.device != "cpu":
        return
    for rank in run.ranks:
        seen = None if rank.agent is None else rank.agent.limit_seen_bytes
        lifted = rank.agent is not None and rank.agent.limit_lifted is True
        if lifted or (seen is not None and seen > limit):
            findings.fail(
                f"the memory limit of rank {rank.rank} was lifted during the run",
                expected=f"{gib(limit):.3f} GiB",
                observed="higher or none" if seen is None or seen <= limit else f"{gib(seen):.3f} GiB",
            )
        elif seen is None:
            findings.unseen(f"the memory limit of rank {rank.rank} during the run")


def scope_respected(comparison: Comparison, findings: Findings) -> None:
    """Changed files lie in the scope, locked files are untouched, no path leads out of the project."""
    violations = comparison.context.scope_findings
    if violations is None:
        findings.unseen("the changed files were not checked", essential=True)
        return
    for violation in violations:
        findings.fail(violation, expected="only files in the scope changed", observed=violation)
    findings.passed("every changed file lies in the scope and the locked files are untouched")
