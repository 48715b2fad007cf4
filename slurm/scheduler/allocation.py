"""What is asked of Slurm for one job, as the options of sbatch and the text of its script."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from engine.errors import TaskFileError
from engine.schema.task import AllocationSection, SlurmSection

Options = dict[str, str | Literal[True]]

_OURS = frozenset(
    {
        *("job-name", "output", "error", "open-mode", "chdir", "comment", "signal"),
        *("nodes", "ntasks", "ntasks-per-node", "cpus-per-task", "array", "requeue", "no-requeue"),
        *("wrap", "test-only", "parsable", "wait", "hold", "quiet", "help", "version", "clusters", "time"),
    }
)
_GPU_OPTIONS = frozenset(
    {"gres", "gpus", "gpus-per-node", "gpus-per-task", "gpus-per-socket", "tres-per-task"}
)
_MEMORY_OPTIONS = frozenset({"mem", "mem-per-cpu", "mem-per-gpu"})
_OPTION = re.compile(r"[a-z][a-z0-9-]+")
_SIGNAL_DELAY_S = 30


@dataclass(frozen=True, kw_only=True)
class AllocationRequest:
    """One job: its shape in nodes, GPUs and CPUs, its limit in minutes, and where its output goes.

    `gpus_per_node` None asks for none; `mem` None takes [slurm].mem; `exclude` names nodes not to be used,
    `nodelist` those to be used, empty = any; `error` None sends stderr to `output`; `signal` is as of
    `sbatch --signal`.
    """

    name: str
    nodes: int
    cpus_per_task: int
    time_min: int
    settings: SlurmSection
    output: str
    tasks_per_node: int = 1
    gpus_per_node: int | None = None
    mem: str | None = None
    exclude: tuple[str, ...] = ()
    nodelist: tuple[str, ...] = ()
    requeue: bool = False
    signal: str | None = None
    error: str | None = None
    chdir: str | None = None
    comment: str | None = None


def gpus_wanted(settings: SlurmSection, allocation: AllocationSection) -> int | None:
    """GPUs a node to ask for; for training on CPUs only where [slurm] says how GPUs are requested.

    There the ranks on CPUs stand in for those on GPUs, so that a cluster's GPUs are really taken.
    """
    is_explicit = not settings.model_fields_set.isdisjoint({"gpu_request", "gpu_type"})
    return allocation.gpus_per_node if allocation.device == "cuda" or is_explicit else None


def end_signal(time_min: int) -> str:
    """SIGUSR2 to the steps shortly before the limit; never so early that a short job gets it at its start."""
    return f"USR2@{min(_SIGNAL_DELAY_S, time_min * 60 // 4)}"


def sbatch_options(request: AllocationRequest) -> Options:
    """The long options of sbatch for a job, True = without a value; [slurm].extra has the last word.

    Raises:
        TaskFileError: [slurm].extra names an option that is not the user's, or holds a line break.
    """
    settings = request.settings
    options: Options = {
        "job-name": request.name,
        "nodes": str(request.nodes),
        "ntasks-per-node": str(request.tasks_per_node),
        "cpus-per-task": str(request.cpus_per_task),
        "time": str(request.time_min),
        "output": request.output,
        "open-mode": "append",
        "requeue" if request.requeue else "no-requeue": True,
    }
    named: Mapping[str, str | None] = {
        "error": request.error,
        "chdir": request.chdir,
        "comment": request.comment,
        "signal": request.signal,
        "partition": settings.partition,
        "account": settings.account,
        "qos": settings.qos,
        "constraint": settings.constraint,
        "reservation": settings.reservation,
        "mem": _memory(request),
        "exclude": ",".join(request.exclude) or None,
        "nodelist": ",".join(request.nodelist) or None,
    }
    options |= {option: value for option, value in named.items() if value is not None}
    options |= _gpu_option(request)
    if settings.exclusive:
        options["exclusive"] = True
    return _one_line_each(_with_extra(options, _extra(settings)))


def srun_words(request: AllocationRequest, output: str, error: str) -> list[str]:
    """The srun call of one task a node over all nodes of a job; the program's words are to follow.

    Every number is said again: what srun takes from the environment differs between Slurm's versions, and
    sites change what happens to the other tasks when one ends.
    """
    return [
        "srun",
        "--unbuffered",
        f"--nodes={request.nodes}",
        f"--ntasks={request.nodes * request.tasks_per_node}",
        f"--ntasks-per-node={request.tasks_per_node}",
        f"--cpus-per-task={request.cpus_per_task}",
        "--kill-on-bad-exit=1",
        "--wait=60",
        "--export=ALL",
        "--output",
        output,
        "--error",
        error,
        *request.settings.srun_args,
    ]


def script_text(options: Mapping[str, str | Literal[True]], body: Sequence[str]) -> str:
    """A batch script: the options as #SBATCH lines, sorted, then the lines of the body."""
    lines = [
        f"#SBATCH --{option}" if value is True else f"#SBATCH --{option}={shlex.quote(value)}"
        for option, value in sorted(options.items())
    ]
    return "\n".join(["#!/bin/bash", *lines, "", *body, ""])


def _memory(request: AllocationRequest) -> str | None:
    # An exclusive job gets all CPUs of its nodes, but only the memory that it asks for: 0 = all of it.
    return request.mem or request.settings.mem or ("0" if request.settings.exclusive else None)


def _gpu_option(request: AllocationRequest) -> Options:
    settings = request.settings
    if request.gpus_per_node is None:
        return {}
    count = str(request.gpus_per_node)
    typed = count if settings.gpu_type is None else f"{settings.gpu_type}:{count}"
    return {"gres": f"gpu:{typed}"} if settings.gpu_request == "gres" else {"gpus-per-node": typed}


def _extra(settings: SlurmSection) -> Options:
    """[slurm].extra with option names as sbatch spells them; False leaves an option out."""
    extra: Options = {}
    for key, value in settings.extra.items():
        option = key.lstrip("-").replace("_", "-")
        if option in _OURS or not _OPTION.fullmatch(option):
            raise TaskFileError(
                "this option of sbatch is not free to choose",
                key=f"slurm.extra.{key}",
                value=value,
                rule="long names of options; shape, time, name, output, requeueing and signals are ours",
                hint="sizes are set in [allocation], the time limit by slurm.time_limit_min",
            )
        if value is not False:
            extra[option] = True if value is True else str(value)
    return extra


def _with_extra(options: Options, extra: Options) -> Options:
    """Both together; where Slurm takes only one of several options, the user's."""
    merged, added = dict(options), dict(extra)
    gres = added.get("gres")
    is_other_resource = isinstance(gres, str) and not gres.startswith("gpu")
    if is_other_resource and "gres" in merged:
        added["gres"] = f"{merged['gres']},{gres}"
    elif not _GPU_OPTIONS.isdisjoint(added) and not is_other_resource:
        merged = {option: value for option, value in merged.items() if option not in _GPU_OPTIONS}
    if not _MEMORY_OPTIONS.isdisjoint(added):
        merged = {option: value for option, value in merged.items() if option not in _MEMORY_OPTIONS}
    if "exclude" in merged and "exclude" in added:
        added["exclude"] = f"{added['exclude']},{merged['exclude']}"
    return merged | added


def _one_line_each(options: Options) -> Options:
    for option, value in options.items():
        if "\n" in str(value) or "\r" in str(value):
            raise TaskFileError(
                f"the value of --{option} holds a line break", key="slurm", value=value, rule="one line"
            )
    return options
