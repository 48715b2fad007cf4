"""One run as seen from inside the ranks (probe) and from outside (node agent, /proc).

`None` always means "not seen", never zero; `RankEvidence.why_unseen` gives the reason. Times end in `_ns`
or `_s`, sizes in `_bytes`. Hashes are integers modulo 2**64. A number that was not finite is left out and
its field is named in `UpdateRecord.nonfinite`.
"""

from __future__ import annotations

from typing import Literal

from engine.schema.base import Record

Ended = Literal[
    "exited",
    "start_timeout",
    "update_timeout",
    "total_timeout",
    "cancelled",
    "launch_failed",
    "no_result",
]
"""How the launcher's run ended; `no_result` = result.json is missing or cannot be read."""

HyperValue = bool | int | float | str | tuple[float, ...] | None


class HelloRecord(Record):
    """What a rank said before user code ran."""

    rank: int
    local_rank: int | None
    world: int | None
    pid: int | None
    argv: tuple[str, ...]
    python: str | None


class TorchRecord(Record):
    """What the probe found when the script imported torch."""

    version: str | None
    threads: int | None
    device_name: str | None
    rlimit_data_bytes: int | None
    hooks: tuple[str, ...]


class ParameterRecord(Record):
    """One parameter or buffer; `shape` is global, `content_hash` and `sumsq` cover this rank's part of it."""

    name: str
    shape: tuple[int, ...]
    dtype: str | None
    trainable: bool | None
    tied_to: str | None
    content_hash: int | None
    sumsq: float | None
    group: int | None

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
    tensors: int | None
    numel: int | None


class OptimizerRecord(Record):
    """One optimizer; `state_dtypes` maps "exp_avg:float32" to elements."""

    index: int
    class_name: str
    groups: tuple[OptimizerGroup, ...]
    state_dtypes: dict[str, int]


class PhaseTimes(Record):
    """Nanoseconds of one update on one rank; communication is the exposed part."""

    forward: int | None
    backward: int | None
    optimizer: int | None
    data: int | None
    eval: int | None
    communication: int | None


class EventCounts(Record):
    """Events of one update on one rank; forward and backward are outermost calls (micro-batches)."""

    forward: int | None
    backward: int | None
    eval: int | None
    data: int | None
    optimizer: int | None
    skipped: int | None


class MemoryReading(Record):
    """The probe's own reading of its process and device."""

    vm_data_bytes: int | None
    vm_hwm_bytes: int | None
    vm_rss_bytes: int | None
    cuda_allocated_peak_bytes: int | None
    cuda_reserved_peak_bytes: int | None


class StepSample(Record):
    """Sampled parameter elements of one optimizer: how many a step changed."""

    optimizer: int
    changed: int
    sampled: int


class UpdateRecord(Record):
    """One optimizer update of one rank; `arrived_ns` is on the agent's monotonic clock, the rest on the probe's."""

    index: int
    arrived_ns: int | None
    wall_ns: int | None
    end_ns: int | None
    cpu_ns: int | None
    probe_ns: int | None
    phases: PhaseTimes
    communication_source: str | None
    counts: EventCounts
    samples: int | None
    tokens: int | None
    label_tokens: int | None
    label_source: str | None
    shapes: tuple[str, ...]
    data_hash: int | None
    label_hash: int | None
    loss: tuple[float, ...] | None
    grad_norm: float | None
    grad_norm_source: str | None
    clip_norms: tuple[float, ...] | None
    clip_max: tuple[float, ...] | None
    hyper: tuple[tuple[dict[str, HyperValue], ...], ...] | None
    steps: tuple[StepSample, ...] | None
    autocast: tuple[str, ...] | None
    grad_dtypes: tuple[str, ...] | None
    param_dtypes: tuple[str, ...] | None
    memory: MemoryReading
    hooks_ok: bool | None
    clocks_ok: bool | None
    compiles: int | None
    nonfinite: tuple[str, ...] = ()


class Frame(Record):
    """One frame of a traceback."""

    file: str
    line: int | None
    name: str


class CudaMemory(Record):
    """Allocator state at an exception."""

    allocated_bytes: int | None
    reserved_bytes: int | None
    free_bytes: int | None
    total_bytes: int | None


class ExceptionRecord(Record):
    """An exception that left forward, backward, step, the data loader or the script; `bases` is its class's MRO."""

    phase: str
    type: str
    bases: tuple[str, ...]
    message: str
    frames: tuple[Frame, ...]
    update: int | None
    memory: MemoryReading | None
    cuda_memory: CudaMemory | None


class EndRecord(Record):
    """The last record of a rank."""

    updates: int | None
    reason: str | None
    hooks_ok: bool | None
    clocks_ok: bool | None


class WindowReading(Record):
    """The measured window on the agent's clock: from the arrival before `first` to the arrival of `last`."""

    first: int
    last: int
    elapsed_ns: int | None
    cpu_s: float | None


class AgentReading(Record):
    """What the node agent saw of a rank without asking it."""

    pid: int | None
    hello: bool | None
    updates: int | None
    end: bool | None
    exit_code: int | None
    first_update_ns: int | None
    last_update_ns: int | None
    cpu_s: float | None
    peak_vm_data_bytes: int | None
    peak_vm_hwm_bytes: int | None
    limit_seen_bytes: int | None
    window: WindowReading | None


class RankEvidence(Record):
    """One rank. `unavailable` maps a probe quantity to the reason why it cannot be seen."""

    rank: int
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

    `ranks` holds only ranks that left any trace, sorted; `notes` names every file or record that could
    not be read.
    """

    trial_id: str
    ended: Ended
    exit_code: int | None
    signal: int | None
    wall_s: float | None
    started_at: float | None
    host: str | None
    launch_error: str | None
    nodes: int
    ranks_per_node: int
    cpus_per_rank: int
    total_updates: int
    measured_updates: int
    device: Literal["cpu", "cuda"]
    memory_limit_bytes: int | None
    ranks: tuple[RankEvidence, ...]
    log_path: str | None
    log_tail: str
    notes: tuple[str, ...] = ()

    @property
    def world_size(self) -> int:
        """Ranks that the plan asked for."""
        return self.nodes * self.ranks_per_node

    @property
    def warmup_updates(self) -> int:
        """Updates before the measured window."""
        return self.total_updates - self.measured_updates

    def rank(self, number: int) -> RankEvidence | None:
        """The evidence of one rank, None where it left no trace."""
        return next((rank for rank in self.ranks if rank.rank == number), None)
