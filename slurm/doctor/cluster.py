"""The controller and its settings: which Slurm, is it there, and what follows from how it is set up."""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping

from slurm.doctor.check import Check
from slurm.scheduler.capabilities import Capabilities
from slurm.scheduler.command import SlurmCommands
from slurm.scheduler.submission import enclosing_job

GROUP = "cluster"
NEEDED = ("sbatch", "squeue", "scontrol", "scancel", "srun", "sinfo")
DEFAULT_POLL_S = 10.0

_SETTING = re.compile(r"^\s*([A-Za-z_]+)\s*=\s*(.*?)\s*$", re.MULTILINE)
_ROUNDS_BEFORE_FORGOTTEN = 3


def commands_check() -> Check:
    """Which of Slurm's programs are on PATH: tells a machine without Slurm from a broken one."""
    there = [name for name in NEEDED if shutil.which(name)]
    if not there:
        return Check(
            "slurm_commands",
            GROUP,
            "skipped",
            "this machine has no Slurm: local executor only",
            "",
            "where there should be one, load the site's Slurm module",
        )
    missing = [name for name in NEEDED if name not in there]
    if missing:
        return Check(
            "slurm_commands",
            GROUP,
            "fail",
            f"not on PATH: {', '.join(missing)}",
            "jobs cannot be submitted and followed from here",
            "load the site's Slurm module, or work on a login node",
        )
    return Check("slurm_commands", GROUP, "ok", f"{', '.join(there)} in {_folder(there[0])}")


def controller_check(commands: SlurmCommands, known: Capabilities) -> Check:
    """The release, and whether the controller answers."""
    version = commands.run("sinfo", "--version")
    release = version.stdout.strip() if version.ok else f"release unknown ({version.complaint})"
    if known.problem is not None:
        return Check(
            "slurm_version",
            GROUP,
            "fail",
            f"{release}; {known.problem}",
            "the controller does not answer",
            "`scontrol ping`; it may come back by itself, and SLURM_CONF may be missing in this shell",
        )
    return Check("slurm_version", GROUP, "ok", f"{release}, cluster {known.cluster or 'without a name'}")


def settings_of(commands: SlurmCommands) -> dict[str, str]:
    """`scontrol show config`, keys in lower case; empty where it gives no answer."""
    result = commands.run("scontrol", "show", "config")
    if not result.ok:
        return {}
    return {match.group(1).lower(): match.group(2) for match in _SETTING.finditer(result.stdout)}


def settings_checks(known: Capabilities, settings: Mapping[str, str], min_poll_s: float) -> list[Check]:
    """What follows from the cluster's settings."""
    return [
        accounting_check(known),
        memory_of_jobs_check(known, min_poll_s),
        _rate_limit(settings),
        _requeue(known),
        _confinement(settings),
        _associations(settings),
        enclosing_job_check(),
    ]


def accounting_check(known: Capabilities) -> Check:
    """Whether sacct tells how jobs ended."""
    if known.accounting:
        return Check(
            "accounting", GROUP, "ok", "on", "sacct tells how a job ended, for as long as it is kept"
        )
    meaning = (
        "how a job ended is known to the controller for MinJobAge only; the files of each trial decide, "
        "and `infrarsi` asks squeue and scontrol"
    )
    return Check("accounting", GROUP, "warn", "off, or sacct is not here", meaning)


def memory_of_jobs_check(known: Capabilities, min_poll_s: float) -> Check:
    """Whether an ended job is remembered for long enough to be seen by several rounds of questions."""
    age_s = known.min_job_age_s
    if age_s is None:
        return Check("min_job_age", GROUP, "skipped", "MinJobAge is not known")
    found = f"the controller remembers ended jobs for {age_s} s; asked every {min_poll_s:g} s or less often"
    if known.accounting or age_s >= _ROUNDS_BEFORE_FORGOTTEN * min_poll_s:
        return Check("min_job_age", GROUP, "ok", found)
    return Check(
        "min_job_age",
        GROUP,
        "warn",
        found,
        "a job that leaves no result may be forgotten before its end is read",
        f"set slurm.min_poll_s to {max(1, age_s // _ROUNDS_BEFORE_FORGOTTEN)} at most",
    )


def enclosing_job_check() -> Check:
    """Whether we sit inside a job, whose variables must not reach other jobs."""
    job_id = enclosing_job()
    if job_id is None:
        return Check("inside_job", GROUP, "ok", "not inside a job")
    return Check(
        "inside_job",
        GROUP,
        "warn",
        f"inside job {job_id}",
        "its SLURM_* variables are kept away from the jobs that are submitted; it ends when the job ends",
        "start long studies from a login node, or with `infrarsi submit`",
    )


def _rate_limit(settings: Mapping[str, str]) -> Check:
    if "rl_enable" not in settings.get("slurmctldparameters", "").lower():
        return Check("rate_limit", GROUP, "ok", "the controller limits no user's questions")
    meaning = "too many questions are answered late; `infrarsi` asks once for all jobs, every min_poll_s"
    return Check(
        "rate_limit", GROUP, "ok", "the controller limits each user's questions (rl_enable)", meaning
    )


def _requeue(known: Capabilities) -> Check:
    by_default = "by default" if known.requeue_by_default else "on request only"
    preemption = f"; preemption: {known.preempt_mode}" if known.preempt_mode else ""
    meaning = "trials ask not to be requeued, the unattended engine asks for it"
    return Check("requeue", GROUP, "ok", f"jobs are requeued {by_default}{preemption}", meaning)


def _confinement(settings: Mapping[str, str]) -> Check:
    tracking, tasks = settings.get("proctracktype", "unknown"), settings.get("taskplugin", "unknown")
    found = f"{tracking}, {tasks}"
    if "cgroup" in tracking:
        return Check("confinement", GROUP, "ok", found, "whatever a job leaves behind is ended with it")
    meaning = "processes that leave their job may outlive it and disturb later measurements"
    return Check(
        "confinement", GROUP, "warn", found, meaning, "the agent ends what a trial leaves; ask for cgroups"
    )


def _associations(settings: Mapping[str, str]) -> Check:
    enforced = settings.get("accountingstorageenforce", "none")
    if "assoc" not in enforced.lower():
        return Check("account", GROUP, "ok", "no account has to be named")
    return Check(
        "account",
        GROUP,
        "ok",
        f"enforced: {enforced}",
        "jobs run on an account of yours, the default one unless slurm.account says otherwise",
        "`sacctmgr show associations user=$USER format=account,partition,qos`",
    )


def _folder(program: str) -> str:
    return (shutil.which(program) or program).rpartition("/")[0] or "."
