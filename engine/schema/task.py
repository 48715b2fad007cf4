"""The task file (infrarsi.toml) as records: a training project and what may and may not change.

Cross-field rules live in engine/task/load.py, where the file's name and keys are at hand for the error.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from engine.schema.base import Record, Scalar

Framework = Literal[
    "hf_transformers",
    "accelerate_fsdp",
    "deepspeed",
    "axolotl",
    "llamafactory",
    "trl",
    "ms_swift",
    "megatron_lm",
    "nemo",
    "torchtitan",
    "lightning",
    "nanotron",
    "custom",
]
PositiveInt = Annotated[int, Field(ge=1)]
PositiveFloat = Annotated[float, Field(gt=0)]
Fraction = Annotated[float, Field(ge=0, lt=1)]


class TaskSection(Record):
    """[task]: the training project and how it is started."""

    name: Annotated[str, Field(min_length=1, description="Name of the task, used in reports and the store")]
    framework: Annotated[Framework, Field(description="Training framework; custom = a plain script")] = (
        "custom"
    )
    project: Annotated[str, Field(description="Folder of the project, relative to this file")] = "."
    python: Annotated[
        str | None, Field(description="Training interpreter; default: the one that runs us")
    ] = None
    setup: Annotated[list[str], Field(description="Shell lines run before the command (modules, conda)")] = []
    launcher: Annotated[Literal["torchrun", "srun", "command"], Field(description="Who starts the ranks")] = (
        "torchrun"
    )
    command: Annotated[
        list[str],
        Field(
            min_length=1,
            description="Script and arguments; placeholders {nnodes} {node_rank} {nproc} {world_size} "
            "{master_addr} {master_port} {output_dir}",
        ),
    ]
    data: Annotated[list[str], Field(description="Paths referenced in place, never copied")] = []


class AllocationSection(Record):
    """[allocation]: the hardware of one trial."""

    nodes: Annotated[PositiveInt, Field(description="Nodes")] = 1
    gpus_per_node: Annotated[PositiveInt, Field(description="GPUs (on cpu: ranks) per node")] = 8
    device: Annotated[Literal["cuda", "cpu"], Field(description="Training device")] = "cuda"
    ranks_per_node: Annotated[PositiveInt | None, Field(description="Default: gpus_per_node")] = None
    cpus_per_rank: Annotated[PositiveInt, Field(description="CPU cores (threads) per rank")] = 1
    memory_limit_gib: Annotated[
        PositiveFloat | None, Field(description="Per rank; on cpu an allocation past it really fails")
    ] = None

    @property
    def ranks(self) -> int:
        """Ranks per node."""
        return self.ranks_per_node or self.gpus_per_node

    @property
    def world_size(self) -> int:
        """Ranks of the whole allocation."""
        return self.nodes * self.ranks


class SlurmSection(Record):
    """[slurm]: how jobs are requested on this cluster."""

    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    constraint: str | None = None
    reservation: str | None = None
    gpu_request: Literal["gres", "gpus-per-node"] = "gres"
    gpu_type: str | None = None
    exclusive: bool = False
    mem: str | None = None
    time_limit_min: PositiveInt = 60
    extra: dict[str, str | int | bool] = {}
    srun_args: list[str] = []
    mode: Literal["per-trial", "held"] = "per-trial"
    parallel_trials: PositiveInt = 1
    min_poll_s: PositiveFloat = 10.0


class ModelSection(Record):
    """[model]: sizes, where known; measured by the probe where possible."""

    parameters: PositiveInt | None = None
    active_parameters: PositiveInt | None = None
    layers: PositiveInt | None = None
    hidden: PositiveInt | None = None
    heads: PositiveInt | None = None
    kv_heads: PositiveInt | None = None
    ffn: PositiveInt | None = None
    experts: PositiveInt | None = None
    experts_active: PositiveInt | None = None
    vocab: PositiveInt | None = None
    sequence: PositiveInt | None = None


class MeasurementSection(Record):
    """[measurement]: the minimum that is run; the harness may extend the warm-up."""

    warmup_updates: Annotated[
        PositiveInt, Field(description="Updates before the measured window, minimum")
    ] = 3
    measured_updates: Annotated[int, Field(ge=3, description="Updates in the measured window")] = 10
    seed: Annotated[int, Field(ge=0, description="Seed of the search (not of the training)")] = 0
    horizon_updates: Annotated[
        PositiveInt, Field(description="Updates of a real run between restarts; start-up is charged over it")
    ] = 10_000


class BudgetSection(Record):
    """[budget]: whichever limit is reached first ends the search."""

    trials: Annotated[PositiveInt | None, Field(description="Search trials")] = None
    gpu_hours: PositiveFloat | None = None
    wall_clock_hours: PositiveFloat | None = None
    verification_share: Annotated[float, Field(ge=0.05, le=0.8)] = 0.25
    target_speedup: Annotated[float | None, Field(gt=1)] = None


class ConstraintsSection(Record):
    """[constraints]: what must stay as it is."""

    precision_floor: Literal["fp32", "bf16", "fp16", "fp8"] = "bf16"
    loss_tolerance: Annotated[PositiveFloat, Field(description="Relative, per update")] = 0.005
    memory_headroom: Fraction = 0.04
    data_order: Literal["exact", "same_multiset"] = "exact"
    allow: Annotated[list[str], Field(description="Locked mechanisms that may be proposed after all")] = []
    require: Annotated[list[str], Field(description="Expressions that must hold for every candidate")] = []


class ScopeSection(Record):
    """[scope]: files that patches may and may not touch (globs, relative to the project)."""

    editable: list[str] = []
    locked: list[str] = []


class AdvisorSection(Record):
    """[advisor]: who proposes ideas besides the search."""

    kind: Literal["rules", "claude", "none"] = "rules"
    model: str | None = None
    max_usd: PositiveFloat | None = None
    max_tokens: PositiveInt | None = None
    patches: Literal["off", "ask", "auto"] = "off"


class FileBinding(Record):
    """A dotted key of a TOML, YAML or JSON file."""

    file: str
    key: str


class FlagBinding(Record):
    """A flag: `--x v`, `--x=v`, `--x` present or absent (bare), `--x` or `--no-x` (negatable)."""

    flag: str
    style: Literal["value", "equals", "bare", "negatable"] = "value"


class EnvBinding(Record):
    """An environment variable of the training process."""

    env: str


class PythonBinding(Record):
    """A module-level constant of a Python file."""

    python: str
    name: str


Binding = FileBinding | FlagBinding | EnvBinding | PythonBinding


class Unset(Record):
    """The literal { unset = true }: removes the key, flag or variable."""

    unset: Literal[True]


class Range(Record):
    """values = { min, max, step }."""

    min: float | int
    max: float | int
    step: float | int


class Parameter(Record):
    """One [[parameters]] entry.

    values, after loading: a list of (canonical value, literal to write) in the file's order.
    """

    mechanism: Annotated[str, Field(min_length=1)]
    values: Annotated[
        dict[str, Any] | list[Scalar] | None,
        Field(description="{canonical = literal}, [list] or {min, max, step}; absent for derived"),
    ] = None
    initial: Annotated[list[Scalar] | None, Field(description="Values searched first; default: all")] = None
    default: Annotated[
        Scalar | None, Field(description="Baseline value; default: what the bindings hold")
    ] = None
    when: Annotated[str | None, Field(description="Only meaningful where this expression holds")] = None
    derived: Annotated[str | None, Field(description="Computed, not searched")] = None
    bindings: Annotated[list[Binding], Field(min_length=1)]


class TaskFile(Record):
    """infrarsi.toml."""

    task: TaskSection
    allocation: AllocationSection = AllocationSection()
    slurm: SlurmSection = SlurmSection()
    model: ModelSection = ModelSection()
    measurement: MeasurementSection = MeasurementSection()
    budget: BudgetSection = BudgetSection()
    constraints: ConstraintsSection = ConstraintsSection()
    scope: ScopeSection = ScopeSection()
    advisor: AdvisorSection = AdvisorSection()
    parameters: list[Parameter] = []
