"""The training environment as a function of the caller's and the plan's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from slurm.agent.environment import is_scrubbed, scrubbed, training_environment
from slurm.agent.plan import LaunchPlan, load_plan
from tests.slurm.trial_folder import make_trial


def _plan(tmp_path: Path, **overrides: Any) -> LaunchPlan:
    make_trial(tmp_path / "t", "normal", **overrides)
    return load_plan(tmp_path / "t" / "spec.json")


@pytest.mark.parametrize(
    "name",
    [
        "SLURM_CPU_BIND",
        "SLURM_JOB_ID",
        "SBATCH_EXPORT",
        "SRUN_DEBUG",
        "SUBMITIT_EXECUTOR",
        "PMI_RANK",
        "PMIX_RANK",
        "MASTER_ADDR",
        "RANK",
        "LOCAL_RANK",
        "WORLD_SIZE",
        "PYTHONSAFEPATH",
        "OPENAI_API_KEY",
        "ANTHROPIC_BASE_URL",
        "HF_TOKEN",
        "github_token",
        "AWS_SECRET_ACCESS_KEY",
        "AWS_ACCESS_KEY_ID",
        "DB_PASSWORD",
        "GITHUB_PAT",
        "GOOGLE_APPLICATION_CREDENTIALS",
        "OPENAI_ORGANIZATION",
        "SMTP_PASSWD",
        "VENDOR_APIKEY",
        "VAULT_SECRETS",
        "INFRARSI_PROBE",
    ],
)
def test_e16_leftovers_and_secrets_are_scrubbed(name: str) -> None:
    """Variables of another job and keys never reach a trial."""
    assert is_scrubbed(name)


@pytest.mark.parametrize(
    "name",
    [
        "SLURM_CONF",
        "PATH",
        "HOME",
        "CUDA_VISIBLE_DEVICES",
        "HF_HOME",
        "TOKENIZERS_PARALLELISM",
        "TOKENIZER_PATH",
        "MAX_TOKENS",
        "TOKENS_PER_BATCH",
        "NCCL_DEBUG",
    ],
)
def test_settings_of_the_site_are_kept(name: str) -> None:
    """What the user's shell sets for the training stays."""
    assert scrubbed({name: "x"}) == {name: "x"}


def test_plan_beats_the_caller_and_unset_removes(tmp_path: Path) -> None:
    """The plan's variables win over inherited ones; `unset` removes inherited ones."""
    plan = _plan(tmp_path, env={"A": "plan"}, unset=["B"])
    environment = training_environment(plan, {"A": "caller", "B": "caller", "C": "caller"}, "/s", 1)
    assert environment["A"] == "plan"
    assert "B" not in environment
    assert environment["C"] == "caller"


def test_thread_count_follows_the_allocation_unless_planned(tmp_path: Path) -> None:
    """OMP_NUM_THREADS is cpus_per_rank whatever the caller had, except where the plan says otherwise."""
    caller = {"OMP_NUM_THREADS": "64"}
    free = _plan(tmp_path / "free", cpus_per_rank=3)
    assert training_environment(free, caller, "/s", 1)["OMP_NUM_THREADS"] == "3"
    planned = _plan(tmp_path / "planned", env={"OMP_NUM_THREADS": "5"})
    assert training_environment(planned, caller, "/s", 1)["OMP_NUM_THREADS"] == "5"


@pytest.mark.parametrize(("device", "expected"), [("cpu", "PASSIVE"), ("cuda", None)])
def test_waiting_threads_sleep_on_cpu_only(tmp_path: Path, device: str, expected: str | None) -> None:
    """The wait policy is set where ranks share cores, and nowhere else."""
    plan = _plan(tmp_path, device=device)
    assert training_environment(plan, {}, "/s", 1).get("OMP_WAIT_POLICY") == expected


@pytest.mark.parametrize(
    ("inherited", "expected"), [(None, "offline"), ("online", "offline"), ("disabled", "disabled")]
)
def test_tracker_never_goes_online(tmp_path: Path, inherited: str | None, expected: str) -> None:
    """A trial does not write into the user's tracker."""
    caller = {} if inherited is None else {"WANDB_MODE": inherited}
    assert training_environment(_plan(tmp_path), caller, "/s", 1)["WANDB_MODE"] == expected


def test_probe_is_told_everything_but_the_window(tmp_path: Path) -> None:
    """The probe learns the number of updates and its own settings; the window stays with the harness."""
    told = json.loads(training_environment(_plan(tmp_path), {}, "/s", 1)["INFRARSI_PROBE"])
    assert told == {
        "total_updates": 5,
        "nonce": "00ff",
        "perturb_ulp_seed": None,
        "signature": True,
        "stop": True,
    }


@pytest.mark.parametrize(("launcher", "ranks", "given"), [("command", 1, True), ("command", 2, False)])
def test_rank_is_given_to_a_lone_process(tmp_path: Path, launcher: str, ranks: int, given: bool) -> None:
    """One process is rank 0 of 1; a launcher of several ranks numbers them itself."""
    environment = training_environment(_plan(tmp_path, launcher=launcher, ranks=ranks), {}, "/s", 7)
    assert ("RANK" in environment) is given
    assert environment.get("MASTER_PORT") == ("7" if given else None)
