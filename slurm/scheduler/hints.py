"""What Slurm's refusals mean for the task file: the key that asks for it, and the next step."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Hint:
    """Where a refusal comes from; `key` None = nothing in the task file is wrong."""

    key: str | None
    advice: str


_PREFIX = re.compile(r"^(?:sbatch|srun|allocation failure): (?:error: |fatal: )?", re.MULTILINE)
_NODES = "`sinfo -o '%P %D %c %m %G %f'` shows each partition's nodes with CPUs, memory, GPUs and features"
_ASSOCIATIONS = "`sacctmgr show associations user=$USER format=account,partition,qos` shows what is yours"

# The first line that matches counts: the narrow ones come first.
_HINTS: tuple[tuple[str, Hint], ...] = (
    (
        r"invalid generic resource|invalid gres|invalid trespec|invalid tres specification",
        Hint(
            "slurm.gpu_type",
            'correct gpu_type, or ask with the other style (slurm.gpu_request = "gres" or '
            f'"gpus-per-node"); {_NODES}',
        ),
    ),
    (
        r"--?gpus?\b.*(not (?:allowed|supported|permitted)|use --gres)|use --gres",
        Hint("slurm.gpu_request", 'this site takes the other style: "gres" or "gpus-per-node"'),
    ),
    (r"invalid partition|invalid partition name", Hint("slurm.partition", "`sinfo -s` lists the partitions")),
    (r"invalid account", Hint("slurm.account", _ASSOCIATIONS)),
    (r"invalid qos", Hint("slurm.qos", _ASSOCIATIONS)),
    (r"invalid wckey", Hint("slurm.extra.wckey", "this site wants a wckey: ask which is yours")),
    (
        r"reservation",
        Hint("slurm.reservation", "`scontrol show reservation` lists them, with users and times"),
    ),
    (r"invalid feature|invalid constraint", Hint("slurm.constraint", _NODES)),
    (r"invalid license", Hint("slurm.extra.licenses", "`scontrol show licenses` lists them")),
    (
        r"maxsubmit|submitjob|too many jobs|maximum job count|resource temporarily",
        Hint(None, "so many jobs of yours are queued already; wait, then `infrarsi resume STUDY`"),
    ),
    (
        r"accounting/qos policy|qos(?:max|grp)|assoc(?:max|grp)",
        Hint("allocation", f"the account or QOS allows less than what is asked for; {_ASSOCIATIONS}"),
    ),
    (
        r"memory specification|memory required|mem-per-cpu|mem_per|minmemory|memory limit",
        Hint("slurm.mem", f"ask for memory that the nodes have; {_NODES}"),
    ),
    (
        r"time limit|timelimit",
        Hint("slurm.time_limit_min", "`sinfo -o '%P %l'` shows each partition's limit"),
    ),
    (
        r"node count specification|more processors requested|too many nodes|nodes? requested.*permitted"
        r"|cpu count|requested node configuration|requested partition configuration",
        Hint(
            "allocation",
            "no nodes have what [allocation] and [slurm] ask for (GPUs and type, CPUs, memory), or they are "
            f"down or drained; {_NODES}",
        ),
    ),
    (
        r"permission|not permitted|access denied|disabled",
        Hint("slurm.partition", "choose a partition, account or reservation that is open to you"),
    ),
    (
        r"unrecognized option|invalid option|unknown option|ambiguous|invalid --|invalid .* specification",
        Hint("slurm.extra", "`man sbatch` lists the options of this version"),
    ),
    (r"batch script|dos line breaks", Hint(None, "please report the script and these words")),
)
_NO_CONTACT = re.compile(
    r"unable to contact slurm|connection refused|connect failure|no route to host|unable to resolve"
    r"|communication connection failure|dns srv|slurm backup controller",
    re.IGNORECASE,
)
_NO_ANSWER = re.compile(
    r"socket timed out|timed out|zero bytes|unexpected message|transport endpoint|connection reset"
    r"|unexpected.* received|message receive failure|message receive|broken pipe|i/o error",
    re.IGNORECASE,
)


def words_of(stderr: str) -> str:
    """What Slurm said, in one line, without the names of its programs."""
    return "; ".join(line.strip() for line in _PREFIX.sub("", stderr).splitlines() if line.strip())


def hint_for(stderr: str) -> Hint:
    """The first known meaning of a refusal."""
    for pattern, hint in _HINTS:
        if re.search(pattern, stderr, re.IGNORECASE):
            return hint
    return Hint(None, "ask Slurm itself: `sbatch --test-only` with the script that is named here")


def never_arrived(stderr: str) -> bool:
    """Whether the words say that no controller was reached at all."""
    return bool(_NO_CONTACT.search(stderr))


def may_have_arrived(stderr: str) -> bool:
    """Whether the words say that an answer is missing: the job may be queued all the same."""
    return bool(_NO_ANSWER.search(stderr))
