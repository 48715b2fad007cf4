"""`status` and `stop`: readers of a study folder; neither takes the study from its engine."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

from engine.diagnosis.nodes import node_values
from engine.errors import ExitCode
from engine.journal import lease
from engine.journal.folder import StudyFolder
from engine.journal.log import read_entries
from engine.journal.requests import post_request
from engine.journal.state import StudyState, replay
from engine.journal.summary import summarise
from engine.schema.study import Stage
from engine.schema.trial import OutcomeKind, TrialKind
from infrarsi_tui.streams import emit_json, emit_text, narrate
from slurm.unattended.folder import EngineFolder
from slurm.unattended.records import EngineState, Phase, read_record


def status(arguments: Namespace) -> int:
    """Where a study stands."""
    folder = StudyFolder.open(arguments.study)
    state = replay(read_entries(folder.journal))
    engine = _engine(folder)
    if arguments.json:
        emit_json({**summarise(state, str(folder.root)), "nodes": node_values(state), "engine": engine})
    else:
        shown = engine or _without_engine(state, folder)
        emit_text(_words(summarise(state, str(folder.root)), state, shown))
    return ExitCode.DONE


def stop(arguments: Namespace) -> int:
    """Ask the engine to end; without one there is nothing to stop."""
    folder = StudyFolder.open(arguments.study)
    engine = _engine(folder)
    if engine is not None:
        post_request(folder.requests, "stop", "stopped by `infrarsi stop`")
        narrate(f"asked {engine} to stop")
    else:
        narrate("no engine works on this study; nothing to stop")
    if arguments.json:
        emit_json({"study_dir": str(folder.root), "stopping": engine is not None})
    return ExitCode.DONE


def _engine(folder: StudyFolder) -> str | None:
    epoch = lease.latest_epoch(folder.journal)
    return None if epoch is None else lease.live_owner(folder.journal, epoch)


def _without_engine(state: StudyState, folder: StudyFolder) -> str:
    """What is to be done without an engine: nothing while an unattended one comes back by itself."""
    if state.stage is Stage.DONE:
        return "none"
    job = read_record(EngineFolder.of(folder.root).state, EngineState)
    if job is not None and job.phase is not Phase.ENDED:
        return f"none at the moment: job {job.job_id} is {job.phase.value.replace('_', ' ')}: {job.words}"
    return "none: `infrarsi resume` goes on where it ended"


def _words(summary: dict[str, Any], state: StudyState, engine: str) -> str:
    searched = state.of_kind(TrialKind.SEARCH)
    failed = sum(
        trial.outcome is not None and trial.outcome.kind is not OutcomeKind.COMPLETED for trial in searched
    )
    lines = [
        f"{summary['task'] or 'a study that has not begun'}: {summary['state']}"
        + (f" during {summary['interrupted_stage']}" if summary["state"] in ("failed", "stopped") else "")
        + (f" ({summary['note']})" if summary["note"] else ""),
        f"  engine     {engine}",
        f"  trials     {len(searched)} searched, {failed} of them without a valid measurement",
        f"  GPU-hours  {summary['gpu_hours']['total']:.4f}",
    ]
    best = summary["best"]
    if best is not None and best["speedup"] is not None:
        word = "verified" if best["verified"] else "not verified"
        lines.append(f"  best       {best['speedup']:.3f}× ({word})")
    return "\n".join(lines)
