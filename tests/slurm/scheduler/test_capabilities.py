from __future__ import annotations

import os
import shutil

import pytest

from slurm.scheduler.capabilities import Capabilities, is_available, parse_config, probe
from slurm.scheduler.command import SlurmCommands
from tests.slurm.scheduler.fake_slurm import FakeSlurm

# As printed by Slurm 22.05, shortened.
CONFIG = """Configuration data as of 2026-11-30T14:00:00
AccountingStorageBackupHost = (null)
AccountingStorageType   = accounting_storage/slurmdbd
ClusterName             = alpha
GresTypes               = gpu
JobRequeue              = 1
KillWait                = 30 sec
MinJobAge               = 300 sec
PreemptMode             = OFF
SelectType              = select/cons_tres
SLURM_CONF              = /etc/slurm/slurm.conf
SLURM_VERSION           = 22.05.8
TaskPlugin              = task/affinity,task/cgroup

Slurmctld(primary) at alpha is UP
"""


def test_the_clusters_configuration_is_read() -> None:
    """Version, memory of jobs, accounting and sharing come from one answer."""
    assert parse_config(CONFIG, has_sacct=True) == Capabilities(
        version=(22, 5),
        cluster="alpha",
        accounting=True,
        min_job_age_s=300,
        kill_wait_s=30,
        requeue_by_default=True,
        select_type="select/cons_tres",
        gres_types=("gpu",),
        task_plugin="task/affinity,task/cgroup",
        preempt_mode="OFF",
    )


def test_accounting_needs_records_and_a_program() -> None:
    """Without slurmdbd, or without sacct, there is no accounting for us."""
    assert not parse_config(CONFIG, has_sacct=False).accounting
    for kind in ("accounting_storage/none", "(null)"):
        assert not parse_config(
            CONFIG.replace("accounting_storage/slurmdbd", kind), has_sacct=True
        ).accounting


def test_a_controller_that_does_not_answer_is_a_value(slurm: FakeSlurm) -> None:
    """The probe of a dead cluster says why nothing is known."""
    slurm.fail("scontrol", "slurm_load_ctl_conf error: Unable to contact slurm controller (connect failure)")
    found = probe(SlurmCommands())
    assert (found.version, found.accounting) == (None, False)
    assert found.problem is not None
    assert "Unable to contact" in found.problem
    assert len(slurm.calls()) == 1


def test_a_changed_output_is_said_to_be_unreadable() -> None:
    """An answer without a single setting is a problem, not a cluster without features."""
    assert parse_config("{}", has_sacct=True).problem is not None


def test_availability_needs_the_programs_that_submit_and_list(
    slurm: FakeSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With squeue alone nothing can be submitted."""
    folder = os.environ["PATH"].split(":")[0]
    monkeypatch.setenv("PATH", folder)
    assert not is_available()
    shutil.copy(f"{folder}/squeue", f"{folder}/sbatch")
    assert is_available()
    slurm.remove("squeue")
    assert not is_available()
