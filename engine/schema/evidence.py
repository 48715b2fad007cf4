"""One run as seen from inside the ranks (probe) and from outside (node agent, /proc).

`None` always means "not seen", never zero; `RankEvidence.why_unseen` gives the reason. Times end in `_ns`
or `_s`, sizes in `_bytes`. Hashes are integers modulo 2**64. A number that was not finite is left out and
its field is named in `UpdateRecord.nonfinite`.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from engine.schema.base import Record

Ended = Literal[
    "exited",
    "start_timeout",
    "update_timeout",
    "total_timeout",
    "cancelled",
    "launch_failed",
    "preflight_failed",
    "node_lost",
    "no_result",
]
"""How the launcher's run ended.

preflight_failed = the agents' checks before the launch failed; node_lost = the agent of a node vanished;
no_result = result.json is missing or cannot be read.
"""

Count = Annotated[int, Field(ge=-(1 << 63), lt=1 << 64)]
"""An integer that the wire can carry."""

Number = Annotated[float, Field(ge=-1e150, le=1e150)]
"""A finite number whose square is finite."""

HyperValue = bool | Count | Number | str | tuple[Number, ...] | None


class HelloRecord(Record):
    """What a rank said before user code ran; `arrived_ns` is on the agent's monotonic clock."""

    rank: Count
    local_rank: Count | None
    world: Count | None
    pid: Count | None
    argv: tuple[str, ...]
    python: str | None
    unix_ns: Count | None = None
    arrived_ns: Count | None = None


class TorchRecord(Record):
    """What the probe found when the script imported torch."""

    version: str | None
    threads: Count | None
    device_name: str | None
    rlimit_data_bytes: Count | None
    hooks: tuple[str, ...]


class ParameterRecord(Record):
    """One parameter or buffer; `shape` is global, `content_hash` and `sumsq` cover this rank's part of it.

    Shards of replica 0 add up to the whole; a tensor that is not sharded is whole on every rank.
    """

    name: str
    shape: tuple[Count, ...]
    dtype: str | None
    trainable: bool | None
    tied_to: str | None
    content_hash: Count | None
    sumsq: Number | None
    group: Count | None
    sharded: bool = False
    replica: Count | None = None

    @property
    def numel(self) -> int:
        """Elements of the whole (unsharded) tensor."""
        count = 1
        for size in self.shape:
            count *= size
        return count


class SignatureRecord(Record):
    """The model at the start or at the end of a run."""

    when: Literal["start", "end"]
    model: str | None
    parameters: tuple[ParameterRecord, ...]
    buffers: tuple[ParameterRecord, ...]
    unavailable: str | None


class OptimizerGroup(Record):
    """One parameter group: hyper-parameters, tensors and elements held by this rank."""

    hyper: dict[str, HyperValue]
    tensors: Count | None
    numel: Count | None


class OptimizerRecord(Record):
    """One optimizer; `state_dtypes` maps "exp_avg:float32" to elements, `wrapper` is a class around it."""

    index: Count
    class_name: str
    groups: tuple[OptimizerGroup, ...]
    state_dtypes: dict[str, Count]
    wrapper: str | None = None


class PhaseTimes(Record):
    """Nanoseconds of one update on one rank; communication is the exposed part."""

    forward: Count | None
    backward: Count | None
    optimizer: Count | None
    data: Count | None
    eval: Count | None
    communication: Count | None


class EventCounts(Record):
    """Events of one update on one rank; forward and backward are outermost calls (micro-batches)."""

    forward: Count | None
    backward: Count | None
    eval: Count | None
    data: Count | None
    optimizer: Count | None
    skipped: Count | None


class MemoryReading(Record):
    """The probe's own reading of its process and device."""

    vm_data_bytes: Count | None
    vm_hwm_bytes: Count | None
    vm_rss_bytes: Count | None
    cuda_allocated_peak_bytes: Count | None
    cuda_reserved_peak_bytes: Count | None


class StepSample(Record):
    """Sampled parameter elements of one optimizer: how many a step changed."""

    optimizer: Count
    changed: Count
    sampled: Count


class UpdateRecord(Record):
    """One optimizer update of one rank.

    tokens: all positions; real_tokens: those that the attention mask keeps; label_tokens: those in the loss.
    `arrived_ns` is on the agent's monotonic clock, the rest on the probe's.
    """

    index: Count
    arrived_ns: Count | None
    wall_ns: Count | None
    end_ns: Count | None
    cpu_ns: Count | None
    probe_ns: Count | None
    phases: PhaseTimes
    communication_source: str | None
    counts: EventCounts
    samples: Count | None
    tokens: Count | None
    real_tokens: Count | None
    label_tokens: Count | None
    label_source: str | None
    shapes: tuple[str, ...]
    data_hash: Count | None
    label_hash: Count | None
    label_hash_source: str | None
    loss: tuple[Number, ...] | None
    grad_norm: Number | None
    grad_norm_source: str | None
    clip_norms: tuple[Number, ...] | None
    clip_max: tuple[Number, ...] | None
    hyper: tuple[tuple[dict[str, HyperValue], ...], ...] | None
    steps: tuple[StepSample, ...] | None
    autocast: tuple[str, ...] | None
    grad_dtypes: tuple[str, ...] | None
    param_dtypes: tuple[str, ...] | None
    memory: MemoryReading
    hooks_ok: bool | None
    clocks_ok: bool | None
    compiles: Count | None
    nonfinite: tuple[str, ...] = ()


class Frame(Record):
    """One frame of a traceback."""

    file: str
    line: Count | None
    name: str


class CudaMemory(Record):
    """Allocator state at an exception."""

    allocated_bytes: Count | None
    reserved_bytes: Count | None
    free_bytes: Count | None
    total_bytes: Count | None


class ExceptionRecord(Record):
    """An exception that left forward, backward, step, the data loader or the script.

    `bases` are the class names of its method resolution order.
    """

    phase: str
    type: str
    bases: tuple[str, ...]
    message: str
    frames: tuple[Frame, ...]
    update: Count | None
    memory: MemoryReading | None
    cuda_memory: CudaMemory | None


class EndRecord(Record):
    """The last record of a rank."""

    updates: Count | None
    reason: str | None
    hooks_ok: bool | None
    clocks_ok: bool | None


class WindowReading(Record):
    """The measured window on the agent's clock: from the arrival before `first` to the arrival of `last`."""

    first: Count
    last: Count
    elapsed_ns: Count | None
    cpu_s: Number | None


class AgentReading(Record):
    """What the node agent saw of a rank without asking it.

    limit_seen_bytes: the lowest data limit over the samples; limit_lifted: whether any sample showed a higher
    one than was asked for.
    """

    pid: Count | None
    hello: bool | None
    updates: Count | None
    end: bool | None
    exit_code: Count | None
    first_update_ns: Count | None
    last_update_ns: Count | None
    cpu_s: Number | None
    peak_vm_data_bytes: Count | None
    peak_vm_hwm_bytes: Count | None
    limit_seen_bytes: Count | None
    limit_lifted: bool | None = None
    window: WindowReading | None


class HostReading(Record):
    """One node of the run as its agent described it; `node_rank` counts from the head, which is 0.

    name: the scheduler's name of the node. reported: whether its agent was there until the end.
    longest_gap_s: the longest pause between two ticks of that agent's loop while the launcher ran; a
    suspended job or a stopped machine shows here. problem: what the agent's own checks found.
    """

    node_rank: Count
    name: str | None
    host: str | None
    reported: bool | None
    longest_gap_s: Number | None
    cpus: Count | None
    devices: Count | None
    problem: str | None


class SlurmIdentity(Record):
    """The Slurm job in which the agents ran; restarts > 0 means that it was requeued."""

    job_id: str | None
    step_id: str | None
    restarts: Count | None


class RankEvidence(Record):
    """One rank, on node `node` (its node rank, None = not said).

    `unavailable` maps a probe quantity to the reason why it cannot be seen.
    """

    rank: Count
    node: Count | None = None
    hello: HelloRecord | None
    torch: TorchRecord | None
    unavailable: dict[str, str]
    start_signature: SignatureRecord | None
    end_signature: SignatureRecord | None
    optimizers: tuple[OptimizerRecord, ...]
    updates: tuple[UpdateRecord, ...]
    exception: ExceptionRecord | None
    end: EndRecord | None
    agent: AgentReading | None
    protocol_errors: tuple[str, ...] = ()
    probe_errors: tuple[str, ...] = ()

    def unix_ns(self, agent_ns: int | None) -> int | None:
        """A moment on the clock of this rank's agent as unix time, to compare ranks of several nodes."""
        hello = self.hello
        if agent_ns is None or hello is None or hello.unix_ns is None or hello.arrived_ns is None:
            return None
        return hello.unix_ns + agent_ns - hello.arrived_ns

    def why_unseen(self, name: str) -> str:
        """Why the quantity `name` has no value on this rank."""
        if name in self.unavailable:
            return self.unavailable[name]
        if self.hello is None:
            return "the probe of this rank never reported"
        if self.torch is None:
            return "the rank never imported torch, or the probe could not watch it"
        return "the records do not hold it"


class RunEvidence(Record):
    """One run of the training job: what was asked for, and what was seen.

    `nodes` were asked for; `hosts` is what is known of each, by node rank; `slurm` is None without it.
    `ranks` holds only ranks that left any trace, sorted; `notes` names every file or record that could
    not be read. `log_first_line` is the number of the tail's first line in the log, None where it is unknown.
    """

    trial_id: str
    ended: Ended
    exit_code: Count | None
    signal: Count | None
    wall_s: Number | None
    started_at: Number | None
    host: str | None
    launch_error: str | None
    hosts: tuple[HostReading, ...] = ()
    slurm: SlurmIdentity | None = None
    nodes: Count
    ranks_per_node: Count
    cpus_per_rank: Count
    total_updates: Count
    measured_updates: Count
    device: Literal["cpu", "cuda"]
    memory_limit_bytes: Count | None
    ranks: tuple[RankEvidence, ...]
    log_path: str | None
    log_tail: str
    log_first_line: Count | None = None
    notes: tuple[str, ...] = ()

    @property
    def world_size(self) -> int:
        """Ranks that the plan asked for."""
        return self.nodes * self.ranks_per_node

    @property
    def warmup_updates(self) -> int:
        """Updates before the measured window."""
        return self.total_updates - self.measured_updates

    @property
    def node_names(self) -> tuple[str, ...]:
        """Names of the nodes by node rank; of a single one its host will do; empty where not known."""
        named = tuple(host.name or host.host for host in self.hosts)
        if named and None not in named:
            return tuple(name for name in named if name is not None)
        return (self.host,) if self.nodes == 1 and self.host is not None else ()

    def node_name(self, node_rank: int | None) -> str | None:
        """The name of one node; None where it is not known."""
        host = next((host for host in self.hosts if host.node_rank == node_rank), None)
        return None if host is None else host.name or host.host

    def last_update_ns(self, rank: RankEvidence) -> int | None:
        """When a rank's last update ended; comparable over the ranks of this run, None = not seen.

        Agents' clocks have nothing in common, so that on several nodes it is unix time.
        """
        seen = rank.agent.last_update_ns if rank.agent is not None else None
        return seen if self.nodes == 1 else rank.unix_ns(seen)

    def rank(self, number: int) -> RankEvidence | None:
        """The evidence of one rank, None where it left no trace."""
        return next((rank for rank in self.ranks if rank.rank == number), None)
