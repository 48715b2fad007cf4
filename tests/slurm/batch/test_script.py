"""The batch script of a trial, to the letter, and what a task file may and may not change in it."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from engine.errors import TaskFileError
from engine.schema.task import AllocationSection, SlurmSection
from slurm.batch.script import TrialJob, agent_command, trial_request, trial_script
from slurm.scheduler.allocation import AllocationRequest, end_signal, gpus_wanted, sbatch_options

TOKEN = "0123456789abcdef" * 2
FOLDER = Path("/studies/a b/trials/t007/submitit")
GOLDEN = """\
#!/bin/bash
#SBATCH --account=llm
#SBATCH --chdir='/studies/a b/trials/t007'
#SBATCH --comment='InfraRSI study dense-gpt-1, trial t007'
#SBATCH --constraint='a100&ib'
#SBATCH --cpus-per-task=64
#SBATCH --error='/studies/a b/trials/t007/submitit/%j_0_log.err'
#SBATCH --exclude=n3,n4
#SBATCH --exclusive
#SBATCH --gpus-per-node=h100:8
#SBATCH --job-name=infrarsi-0123456789ab
#SBATCH --mem=0
#SBATCH --no-requeue
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --open-mode=append
#SBATCH --output='/studies/a b/trials/t007/submitit/%j_0_log.out'
#SBATCH --partition=gpu
#SBATCH --qos=short
#SBATCH --reservation=maint
#SBATCH --signal=USR2@30
#SBATCH --time=25

folder='/studies/a b/trials/t007/submitit'
test -e "$folder/${SLURM_JOB_ID}_submitted.pkl" || \
cp "$folder/call.pkl" "$folder/${SLURM_JOB_ID}_submitted.pkl" 2>/dev/null
unset SLURM_CPUS_PER_TASK SLURM_TRES_PER_TASK
export SUBMITIT_EXECUTOR=slurm
srun --unbuffered --nodes=2 --ntasks=2 --ntasks-per-node=1 --cpus-per-task=64 --kill-on-bad-exit=1 --wait=60 \
--export=ALL --output '/studies/a b/trials/t007/submitit/%j_%t_log.out' \
--error '/studies/a b/trials/t007/submitit/%j_%t_log.err' --container-image=train.sqsh \
/env/python -P -u -m submitit.core._submit '/studies/a b/trials/t007/submitit'
"""


def _job(**changes: object) -> TrialJob:
    values: dict[str, object] = {
        "token": TOKEN,
        "trial_id": "t007",
        "study": "dense gpt#1",
        "folder": FOLDER,
        "nodes": 2,
        "cpus_per_node": 64,
        "time_limit_s": 1321.0,
        "exclude": ("n3", "n4"),
    }
    return TrialJob(**{**values, **changes})  # type: ignore[arg-type]


def _request(settings: SlurmSection | None = None, **allocation: object) -> AllocationRequest:
    section = AllocationSection.model_validate({"nodes": 2, **allocation})
    return trial_request(settings or SlurmSection(), section, _job())


def test_script_of_a_full_request() -> None:
    """Every setting has its option, every number is said to srun again, odd paths are quoted."""
    settings = SlurmSection(
        partition="gpu",
        account="llm",
        qos="short",
        constraint="a100&ib",
        reservation="maint",
        gpu_request="gpus-per-node",
        gpu_type="h100",
        exclusive=True,
        srun_args=["--container-image=train.sqsh"],
    )
    text = trial_script(_request(settings), FOLDER, agent_command(FOLDER, "/env/python"), "call.pkl")
    assert text == GOLDEN


def test_options_of_a_bare_request() -> None:
    """Without [slurm] only shape, limit and our own files are asked for; no wckey, no memory."""
    options = sbatch_options(_request())
    assert set(options) == {
        *("job-name", "nodes", "ntasks-per-node", "cpus-per-task", "time", "output", "error", "open-mode"),
        *("no-requeue", "chdir", "comment", "signal", "exclude", "gres"),
    }
    assert options["gres"] == "gpu:8"


@pytest.mark.parametrize(
    ("settings", "option", "value"),
    [
        ({}, "gres", "gpu:4"),
        ({"gpu_type": "h100"}, "gres", "gpu:h100:4"),
        ({"gpu_request": "gpus-per-node"}, "gpus-per-node", "4"),
        ({"gpu_request": "gpus-per-node", "gpu_type": "h100"}, "gpus-per-node", "h100:4"),
    ],
)
def test_gpus_are_asked_for_in_one_style(settings: dict[str, str], option: str, value: str) -> None:
    """Exactly one of the two options that exclude each other."""
    options = sbatch_options(_request(SlurmSection.model_validate(settings), gpus_per_node=4))
    assert {name: options[name] for name in ("gres", "gpus-per-node") if name in options} == {option: value}


def test_gpus_for_training_on_cpus() -> None:
    """Ranks on CPUs take GPUs only where the task file says how GPUs are requested."""
    cpu = AllocationSection(device="cpu", gpus_per_node=8)
    assert gpus_wanted(SlurmSection(), cpu) is None
    assert gpus_wanted(SlurmSection(gpu_request="gres"), cpu) == 8
    assert gpus_wanted(SlurmSection(gpu_type="h100"), cpu) == 8
    assert gpus_wanted(SlurmSection(), AllocationSection(gpus_per_node=8)) == 8


@pytest.mark.parametrize(
    ("limit_min", "wanted_s", "minutes"), [(60, 100.0, 4), (60, 9000.0, 60), (2, 100.0, 2)]
)
def test_time_is_enough_and_within_the_limit(limit_min: int, wanted_s: float, minutes: int) -> None:
    """Short trials ask for little, so that they start sooner; the task file's limit is never passed."""
    settings = SlurmSection(time_limit_min=limit_min)
    request = trial_request(settings, AllocationSection(), _job(time_limit_s=wanted_s))
    assert request.time_min == minutes


@pytest.mark.parametrize("minutes", [1, 2, 3, 60, 1440])
def test_e12_end_signal_comes_in_the_second_half(minutes: int) -> None:
    """The announcement of the end never reaches a job at its start."""
    name, delay = end_signal(minutes).split("@")
    assert name == "USR2"
    assert 0 < int(delay) < minutes * 60 / 2


def test_extra_options_pass() -> None:
    """True is a bare option, False none at all, anything else its text; underscores are dashes."""
    extra = {"wait-all-nodes": 1, "switches": "1@00:10:00", "spread_job": True, "overcommit": False}
    options = sbatch_options(_request(SlurmSection(extra={**extra, "wckey": "team"})))
    assert options["wait-all-nodes"] == "1"
    assert options["switches"] == "1@00:10:00"
    assert options["spread-job"] is True
    assert options["wckey"] == "team"
    assert "overcommit" not in options


@pytest.mark.parametrize(
    ("extra", "expected"),
    [
        ({"gres": "lustre:1"}, {"gres": "gpu:8,lustre:1"}),
        ({"gres": "gpu:2"}, {"gres": "gpu:2"}),
        ({"gpus-per-task": 8}, {"gpus-per-task": "8"}),
        ({"mem-per-gpu": "40G"}, {"gres": "gpu:8", "mem-per-gpu": "40G"}),
    ],
)
def test_extra_has_the_last_word_where_options_exclude_each_other(
    extra: dict[str, str | int], expected: dict[str, str]
) -> None:
    """An option of the user replaces ours of the same kind; other resources are asked for besides."""
    options = sbatch_options(
        _request(SlurmSection(mem="10G" if "mem-per-gpu" in extra else None, extra=extra))
    )
    kinds = ("gres", "gpus-per-node", "gpus-per-task", "mem", "mem-per-gpu")
    assert {name: options[name] for name in kinds if name in options} == expected


def test_nodes_to_avoid_add_up() -> None:
    """Nodes that the user excludes and nodes that we distrust are both avoided."""
    assert sbatch_options(_request(SlurmSection(extra={"exclude": "n9"})))["exclude"] == "n9,n3,n4"


@pytest.mark.parametrize("name", ["nodes", "job_name", "--output", "time", "requeue", "array", "N", "x y"])
def test_options_that_are_ours_are_refused(name: str) -> None:
    """The error names the key and what to use instead."""
    with pytest.raises(TaskFileError) as caught:
        sbatch_options(_request(SlurmSection(extra={name: "3"})))
    assert caught.value.key == f"slurm.extra.{name}"


def test_no_value_can_add_lines() -> None:
    """A line break in a value would end the option and begin a command."""
    with pytest.raises(TaskFileError, match="line break"):
        sbatch_options(_request(SlurmSection(partition="gpu\ntouch /tmp/x")))


def test_comment_holds_no_text_of_others() -> None:
    """The study's name is reduced to harmless characters."""
    settings, section = SlurmSection(), AllocationSection()
    request = trial_request(settings, section, _job(study='a"; rm -rf / #' + "k" * 200))
    assert request.comment is not None
    assert shlex.split(request.comment)[2] == "a-rm-rf-" + "k" * 52 + ","
