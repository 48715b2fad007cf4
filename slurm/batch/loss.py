"""Why a job is gone without a result: from Slurm's state, and from what Slurm wrote into the job's log."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from engine.schema.job import Loss, SchedulerFacts
from slurm.batch.task import ALREADY_RUN
from slurm.scheduler.losses import loss_in_words, loss_of
from slurm.scheduler.reasons import sentence
from slurm.trial_files import last_words, tail

_SENTENCES = {
    Loss.NODE_FAILED: "a node of the job failed",
    Loss.PREEMPTED: "the job was preempted by another one",
    Loss.HOST_OOM: "the job was killed for its host memory",
    Loss.TIME_LIMIT: "the job ran into its time limit before the agent could write a result",
    Loss.CANCELLED_OUTSIDE: "the job was cancelled, not by this study",
    Loss.RESTARTED: "the job was started again by Slurm: what lies in the folder is not one clean run",
    Loss.NEVER_STARTED: "the agent never started",
    Loss.AGENT_DIED: "the agent is gone without a result",
    Loss.VANISHED: "Slurm does not know the job any more, and it left no result",
}


@dataclass(frozen=True)
class Lost:
    """The cause of a loss and a sentence on it."""

    loss: Loss
    reason: str


def explain_loss(
    folder: Path, facts: SchedulerFacts | None, *, has_begun: bool, memory: str | None = None
) -> Lost:
    """Say why a job without a result is gone.

    Args:
        folder: The folder with the job's logs.
        facts: What Slurm said last; None when it said nothing.
        has_begun: Whether an agent has claimed the trial.
        memory: The host memory that was asked for.
    """
    logs = sorted(folder.glob("*_log.err"))
    said = "\n".join(tail(path) for path in logs)
    loss = _cause(facts, said, has_begun)
    parts = [_SENTENCES[loss]]
    if loss is Loss.HOST_OOM:
        parts.append(f"asked for: {memory or 'what the partition gives by default'}")
    if facts is not None:
        parts.append(_in_slurms_words(facts))
    if loss in (Loss.NEVER_STARTED, Loss.AGENT_DIED, Loss.VANISHED, Loss.HOST_OOM):
        parts.append(f"last output: {last_words(*logs)}")
    return Lost(loss, "; ".join(parts))


def _cause(facts: SchedulerFacts | None, said: str, has_begun: bool) -> Loss:
    loss, told = loss_of(facts), loss_in_words(said)
    if Loss.HOST_OOM in (loss, told):
        return Loss.HOST_OOM
    if facts is not None and has_begun and facts.exit_code == ALREADY_RUN:
        return Loss.RESTARTED
    if loss not in (Loss.VANISHED, Loss.NEVER_STARTED, Loss.AGENT_DIED):
        return loss
    if told is not None:
        return told
    if loss is Loss.VANISHED:
        return loss
    return Loss.AGENT_DIED if has_begun else Loss.NEVER_STARTED


def _in_slurms_words(facts: SchedulerFacts) -> str:
    words = [f"Slurm says {facts.state}: the job {sentence(facts.state, facts.reason)}"]
    if facts.exit_code or facts.signal:
        words.append(f"exit code {facts.exit_code or 0}, signal {facts.signal or 0}")
    if facts.nodes:
        words.append(f"on {', '.join(facts.nodes)}")
    return ", ".join(words)
