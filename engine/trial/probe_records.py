"""The probe's wire records (JSON objects) as typed evidence."""

from __future__ import annotations

from typing import Any, Literal

from engine.schema.evidence import (
    CudaMemory,
    EndRecord,
    EventCounts,
    ExceptionRecord,
    Frame,
    HelloRecord,
    HyperValue,
    MemoryReading,
    OptimizerGroup,
    OptimizerRecord,
    ParameterRecord,
    PhaseTimes,
    SignatureRecord,
    StepSample,
    TorchRecord,
    UpdateRecord,
)
from engine.trial.json_fields import Fields, clean_text, finite, integer, is_non_finite

_NO_MEMORY = MemoryReading(
    vm_data_bytes=None,
    vm_hwm_bytes=None,
    vm_rss_bytes=None,
    cuda_allocated_peak_bytes=None,
    cuda_reserved_peak_bytes=None,
)
_PHASES = ("forward", "backward", "optimizer", "data", "eval", "communication")
_EVENTS = ("forward", "backward", "eval", "data", "optimizer", "skipped")
_MESSAGE_LIMIT = 4000


def read_hello(fields: Fields) -> HelloRecord | None:
    """A hello record; None where it does not even name its rank."""
    rank = fields.integer("rank")
    if rank is None:
        fields.notes.add(f"{fields.where}: hello without a rank")
        return None
    clock = fields.child("clock")
    return HelloRecord(
        rank=rank,
        local_rank=fields.integer("local_rank"),
        world=fields.integer("world"),
        pid=fields.integer("pid"),
        argv=fields.texts("argv") or (),
        python=fields.text("python"),
        unix_ns=None if clock is None else clock.integer("unix_ns"),
        arrived_ns=fields.integer("arrived_ns"),
    )


def read_torch(fields: Fields) -> TorchRecord:
    """What the probe found when torch was imported."""
    return TorchRecord(
        version=fields.text("version"),
        threads=fields.integer("threads"),
        device_name=fields.text("device_name"),
        rlimit_data_bytes=fields.integer("rlimit_data"),
        hooks=fields.texts("hooks") or (),
    )


def read_unavailable(fields: Fields) -> dict[str, str]:
    """Quantity → reason."""
    child = fields.child("unavailable")
    return (
        {} if child is None else {clean_text(name): clean_text(str(why)) for name, why in child.data.items()}
    )


def read_signature(fields: Fields) -> SignatureRecord | None:
    """A parameter signature; None where it does not say when it was taken."""
    when = fields.text("when")
    if when not in ("start", "end"):
        fields.notes.add(f"{fields.where}: signature without start or end")
        return None
    moment: Literal["start", "end"] = "start" if when == "start" else "end"
    return SignatureRecord(
        when=moment,
        model=fields.text("model"),
        parameters=_parameters(fields, "params"),
        buffers=_parameters(fields, "buffers"),
        unavailable=fields.text("unavailable"),
    )


def _parameters(fields: Fields, name: str) -> tuple[ParameterRecord, ...]:
    found = []
    for item in fields.children(name):
        label, shape = item.text("name"), item.data.get("shape")
        sizes = [integer(size) for size in shape] if isinstance(shape, list) else [None]
        if label is None or None in sizes:
            item.notes.add(f"{item.where}: a parameter without name or shape")
            continue
        found.append(
            ParameterRecord(
                name=label,
                shape=tuple(size for size in sizes if size is not None),
                dtype=item.text("dtype"),
                trainable=item.boolean("trainable"),
                tied_to=item.text("tied_to"),
                content_hash=item.hexadecimal("hash"),
                sumsq=item.number("sumsq"),
                group=item.integer("group"),
                sharded=item.boolean("sharded") is True,
                replica=item.integer("replica"),
            )
        )
    return tuple(found)


def hyper_value(value: object) -> HyperValue:
    """One hyper-parameter; anything that is no number, list of numbers or string is shown as text."""
    if value is None or isinstance(value, bool | str):
        return clean_text(value) if isinstance(value, str) else value
    if isinstance(value, list):
        numbers = [finite(element) for element in value]
        if None not in numbers:
            return tuple(number for number in numbers if number is not None)
        return clean_text(str(value))[:200]
    if isinstance(value, int) and integer(value) is not None:
        return value
    number = finite(value)
    return number if number is not None else clean_text(str(value))[:200]


def _hyper(data: dict[str, Any], *, leave_out: tuple[str, ...] = ()) -> dict[str, HyperValue]:
    return {clean_text(name): hyper_value(value) for name, value in data.items() if name not in leave_out}


def read_optimizer(fields: Fields) -> OptimizerRecord | None:
    """One optimizer; None where it has no index."""
    index = fields.integer("index")
    if index is None:
        fields.notes.add(f"{fields.where}: optimizer without an index")
        return None
    states = fields.child("state_dtypes")
    sizes = {} if states is None else {clean_text(key): integer(size) for key, size in states.data.items()}
    return OptimizerRecord(
        index=index,
        class_name=fields.text("class") or "unknown",
        groups=tuple(
            OptimizerGroup(
                hyper=_hyper(dict(group.data), leave_out=("n", "numel")),
                tensors=group.integer("n"),
                numel=group.integer("numel"),
            )
            for group in fields.children("groups")
        ),
        state_dtypes={key: size for key, size in sizes.items() if size is not None},
        wrapper=fields.text("wrapper"),
    )


def read_memory(fields: Fields | None) -> MemoryReading:
    """A memory reading; absent values stay None."""
    if fields is None:
        return _NO_MEMORY
    return MemoryReading(
        vm_data_bytes=fields.integer("vm_data"),
        vm_hwm_bytes=fields.integer("vm_hwm"),
        vm_rss_bytes=fields.integer("vm_rss"),
        cuda_allocated_peak_bytes=fields.integer("cuda_allocated_peak"),
        cuda_reserved_peak_bytes=fields.integer("cuda_reserved_peak"),
    )


def _integers(fields: Fields | None, names: tuple[str, ...]) -> dict[str, int | None]:
    return {name: None if fields is None else fields.integer(name) for name in names}


def _step_samples(fields: Fields) -> tuple[StepSample, ...] | None:
    if fields.data.get("steps") is None:
        return None
    samples = []
    for item in fields.children("steps"):
        optimizer, changed, sampled = (item.integer(name) for name in ("optimizer", "changed", "sampled"))
        if optimizer is not None and changed is not None and sampled is not None:
            samples.append(StepSample(optimizer=optimizer, changed=changed, sampled=sampled))
    return tuple(samples)


def _traced_hyper(fields: Fields) -> tuple[tuple[dict[str, HyperValue], ...], ...] | None:
    value = fields.data.get("hyper")
    if not isinstance(value, list):
        return None
    optimizers = []
    for groups in value:
        if not isinstance(groups, list):
            fields.notes.add(f"{fields.where}: hyper holds no list of groups")
            return None
        optimizers.append(tuple(_hyper(group) for group in groups if isinstance(group, dict)))
    if any(_holds_non_finite(group) for groups in value for group in groups):
        fields.nonfinite.append("hyper")
    return tuple(optimizers)


def _holds_non_finite(group: object) -> bool:
    return isinstance(group, dict) and any(is_non_finite(value) for value in group.values())


def read_update(fields: Fields) -> UpdateRecord | None:
    """One update; None where it has no index."""
    index = fields.integer("i")
    if index is None:
        fields.notes.add(f"{fields.where}: update without an index")
        return None
    loss, grad_norm, clip_norms = fields.numbers("loss"), fields.number("grad_norm"), fields.numbers("clip")
    clip_max, hyper = fields.numbers("clip_max"), _traced_hyper(fields)
    return UpdateRecord(
        index=index,
        arrived_ns=fields.integer("arrived_ns"),
        wall_ns=fields.integer("wall_ns"),
        end_ns=fields.integer("end_ns"),
        cpu_ns=fields.integer("cpu_ns"),
        probe_ns=fields.integer("probe_ns"),
        phases=PhaseTimes(**_integers(fields.child("phase_ns"), _PHASES)),
        communication_source=fields.text("comm_source"),
        counts=EventCounts(**_integers(fields.child("n"), _EVENTS)),
        samples=fields.integer("samples"),
        tokens=fields.integer("tokens"),
        real_tokens=fields.integer("real_tokens"),
        label_tokens=fields.integer("label_tokens"),
        label_source=fields.text("label_source"),
        shapes=fields.texts("shapes") or (),
        data_hash=fields.hexadecimal("data_hash"),
        label_hash=fields.hexadecimal("label_hash"),
        label_hash_source=fields.text("label_hash_source"),
        loss=loss,
        grad_norm=grad_norm,
        grad_norm_source=fields.text("grad_norm_source"),
        clip_norms=clip_norms,
        clip_max=clip_max,
        hyper=hyper,
        steps=_step_samples(fields),
        autocast=fields.texts("autocast"),
        grad_dtypes=fields.texts("grad_dtypes"),
        param_dtypes=fields.texts("param_dtypes"),
        memory=read_memory(fields.child("memory")),
        hooks_ok=fields.boolean("hooks_ok"),
        clocks_ok=fields.boolean("clocks_ok"),
        compiles=fields.integer("compiles"),
        nonfinite=tuple(sorted(set(fields.nonfinite))),
    )


def read_exception(fields: Fields) -> ExceptionRecord:
    """An exception record; missing parts read as "unknown" or None."""
    cuda = fields.child("cuda_memory")
    memory = fields.child("memory")
    return ExceptionRecord(
        phase=fields.text("phase") or "unknown",
        type=fields.text("type") or "unknown",
        bases=fields.texts("mro") or (),
        message=(fields.text("message") or "")[:_MESSAGE_LIMIT],
        frames=tuple(
            Frame(
                file=frame.text("file") or "unknown",
                line=frame.integer("line"),
                name=frame.text("name") or "unknown",
            )
            for frame in fields.children("frames")
        ),
        update=fields.integer("update"),
        memory=None if memory is None else read_memory(memory),
        cuda_memory=None
        if cuda is None
        else CudaMemory(
            allocated_bytes=cuda.integer("allocated"),
            reserved_bytes=cuda.integer("reserved"),
            free_bytes=cuda.integer("free"),
            total_bytes=cuda.integer("total"),
        ),
    )


def read_end(fields: Fields) -> EndRecord:
    """The last record of a rank."""
    return EndRecord(
        updates=fields.integer("updates"),
        reason=fields.text("reason"),
        hooks_ok=fields.boolean("hooks_ok"),
        clocks_ok=fields.boolean("clocks_ok"),
    )
