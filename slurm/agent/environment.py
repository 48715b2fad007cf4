"""The environment of the training process: no secrets, no leftovers of the caller's job, plus the probe."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping

from slurm.agent.plan import LaunchPlan

THREADS_BEFORE = "INFRARSI_THREADS_BEFORE"
"""Variable with what the engine lowered for itself alone: a JSON object of names and values, null = unset."""

_KEPT = frozenset({"SLURM_CONF"})
_PREFIXES = (
    "SLURM_",
    "SBATCH_",
    "SRUN_",
    "SUBMITIT_",
    "PMI",
    "MASTER_",
    "TORCHELASTIC_",
    "ANTHROPIC_",
    "OPENAI_",
    "INFRARSI_",
)
_NAMES = frozenset(
    {
        "RANK",
        "LOCAL_RANK",
        "GROUP_RANK",
        "ROLE_RANK",
        "WORLD_SIZE",
        "LOCAL_WORLD_SIZE",
        "GROUP_WORLD_SIZE",
        "ROLE_WORLD_SIZE",
        "PYTHONSAFEPATH",
    }
)
_SECRET_WORDS = frozenset(
    {"TOKEN", "SECRET", "SECRETS", "PASSWORD", "PASSWD", "PAT", "CREDENTIALS", "APIKEY"}
)
_OFFLINE = frozenset({"offline", "disabled", "dryrun"})


def is_scrubbed(name: str) -> bool:
    """Whether a variable of the caller must not reach a trial.

    Scheduler variables change how a job is pinned and shaped even when nobody asked for it; keys and
    passwords are no business of code that an optimiser wrote.
    """
    if name in _KEPT:
        return False
    upper = name.upper()
    if name in _NAMES or upper.startswith(_PREFIXES) or upper.endswith("API_KEY") or "_ACCESS_KEY" in upper:
        return True
    # Whole words: MAX_TOKENS and TOKENIZER_PATH are settings of a training job.
    return not _SECRET_WORDS.isdisjoint(upper.split("_"))


def scrubbed(environ: Mapping[str, str]) -> dict[str, str]:
    """A copy without the variables that `is_scrubbed` names, and with the caller's own thread limits."""
    copy = {name: value for name, value in environ.items() if not is_scrubbed(name)}
    for name, value in _threads_before(environ).items():
        if isinstance(value, str):
            copy[name] = value
        else:
            copy.pop(name, None)
    return copy


def _threads_before(environ: Mapping[str, str]) -> dict[str, object]:
    try:
        before = json.loads(environ.get(THREADS_BEFORE, "{}"))
    except ValueError:
        return {}
    return before if isinstance(before, dict) else {}


def training_environment(
    plan: LaunchPlan, inherited: Mapping[str, str], socket_path: str, master_port: int
) -> dict[str, str]:
    """The complete environment of the launcher: inherited and scrubbed, then the plan's, then ours.

    Ranks and their meeting point are the launcher's to set; only a lone process gets them here.
    """
    environment = scrubbed(inherited)
    for name in plan.unset:
        environment.pop(name, None)
    environment.update(plan.env)
    if "OMP_NUM_THREADS" not in plan.env:
        environment["OMP_NUM_THREADS"] = str(plan.cpus_per_rank)
    if plan.device == "cpu":
        # Threads that wait by spinning steal the cores of the other ranks.
        environment.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    if "WANDB_MODE" not in plan.env and environment.get("WANDB_MODE") not in _OFFLINE:
        environment["WANDB_MODE"] = "offline"
    environment["PYTHONUNBUFFERED"] = "1"
    theirs = environment.get("PYTHONPATH")
    environment["PYTHONPATH"] = plan.probe_dir + (os.pathsep + theirs if theirs else "")
    environment["INFRARSI_PROBE_SOCKET"] = socket_path
    environment["INFRARSI_PROBE"] = json.dumps({"total_updates": plan.total_updates, **plan.probe})
    if plan.launcher == "command" and plan.world_size == 1:
        for name, value in _single_rank(master_port).items():
            environment.setdefault(name, value)
    return environment


def _single_rank(master_port: int) -> dict[str, str]:
    return {
        "RANK": "0",
        "LOCAL_RANK": "0",
        "WORLD_SIZE": "1",
        "LOCAL_WORLD_SIZE": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(master_port),
    }
