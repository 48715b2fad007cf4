"""`trial`: one candidate against the baseline, verified with independent runs."""

from __future__ import annotations

import hashlib
from argparse import Namespace
from pathlib import Path
from typing import Any

from engine.durable import write_text
from engine.errors import ExitCode, UsageError
from engine.journal.folder import StudyFolder
from engine.journal.state import TrialState
from engine.journal.summary import attribution_value
from engine.schema.base import Scalar
from engine.schema.study import FinalistVerdict
from engine.schema.trial import Candidate, PatchRef, TrialKind
from engine.stages.context import StudyContext
from engine.stages.initialization import SNAPSHOT_PROJECT
from engine.stages.single import run_single
from engine.study import run_study
from engine.task.freeze import freeze_task
from engine.task.load import Task, load_task
from engine.trial.snapshot import Snapshot
from infrarsi_tui.composition import Choices, existing_study, new_study
from infrarsi_tui.conduct import conducted
from infrarsi_tui.display.narration import outcome_words
from infrarsi_tui.display.observer import make_observer
from infrarsi_tui.streams import emit_json, emit_text, narrate


def trial(arguments: Namespace) -> int:
    """Run one candidate; an existing --out is reused, and its baseline with it."""
    observer = make_observer(arguments.display)
    choices = Choices(out=arguments.out, executor=arguments.executor, seed=arguments.seed, single_trial=True)
    task = load_task(arguments.task)
    configuration = _configuration(task, arguments)
    if arguments.out is not None and (arguments.out / "journal").is_dir():
        _refuse_another_task(StudyFolder.open(arguments.out), task)
        opened = existing_study(arguments.out, observer)
    else:
        opened = new_study(arguments.task, choices, observer)
    with opened as quiet, conducted(quiet, arguments) as study:
        if not study.created.options.single_trial:
            raise UsageError(
                "the folder holds a whole study, not single trials",
                key="--out",
                value=str(arguments.out),
                hint="name a folder that `infrarsi trial` made, or a new one",
            )
        patches = tuple(_store_patch(study, path) for path in arguments.patch_files)
        candidate = Candidate(configuration=configuration, patches=patches)
        narrate(f"study: {study.session.folder.root}")
        result: list[tuple[TrialState, FinalistVerdict | None]] = []
        run_study(study, (lambda each: result.append(run_single(each, candidate)),))
        finished, verdict = result[0]
        value = _value(finished, verdict)
        if arguments.json:
            emit_json({"study_dir": str(study.session.folder.root), **value})
        else:
            emit_text(_words(finished, verdict))
        completed = value["outcome"] == "completed"
        return ExitCode.DONE if completed else ExitCode.NO_IMPROVEMENT


def _configuration(task: Task, arguments: Namespace) -> dict[str, Scalar]:
    space = task.space
    configuration: dict[str, Scalar] = dict(space.baseline())
    for assignment in arguments.assignments:
        name, separator, text = assignment.partition("=")
        if not separator:
            raise UsageError("not an assignment", key="--set", value=assignment, rule="--set MECHANISM=VALUE")
        configuration[name] = space.canonical(name, text)
    violations = space.violations(configuration)
    if violations:
        raise UsageError(
            f"the task's requirements do not hold: {'; '.join(violations)}",
            key="--set",
            value=" ".join(arguments.assignments),
            hint="`infrarsi check` shows the requirements",
        )
    normal = space.normalise(configuration)
    for name, value in configuration.items():
        if normal[name] != value:
            raise UsageError(
                f"{name} has no effect in this configuration: its `when` does not hold",
                key="--set",
                value=f"{name}={value}",
                hint="set the parameters that its `when` names, too",
            )
    return normal


def _refuse_another_task(folder: StudyFolder, task: Task) -> None:
    """A baseline is reused only for the very task and project that it was measured on."""
    snapshot = Snapshot.load(folder.snapshot)
    changed = snapshot.differences(task.project)
    if folder.task_file.read_text() != freeze_task(task, SNAPSHOT_PROJECT):
        changed.append(task.file.name)
    if changed:
        raise UsageError(
            f"the task is not the one whose baseline lies here: {', '.join(changed[:5])} differ",
            key="--out",
            value=str(folder.root),
            hint="name a new folder for --out",
        )


def _store_patch(study: StudyContext, path: Path) -> PatchRef:
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            f"the patch cannot be read: {error}",
            file=str(path),
            key="--patch",
            rule="a unified diff in UTF-8",
        ) from error
    digest = hashlib.sha256(text.encode()).hexdigest()
    target = study.session.folder.patch(digest)
    if not target.exists():
        write_text(target, text)
    return PatchRef(name=path.stem, sha256=digest)


def _value(finished: TrialState, verdict: FinalistVerdict | None) -> dict[str, Any]:
    outcome = finished.outcome
    if outcome is None:
        raise AssertionError("a single trial ends with an outcome")
    invariants = verdict.invariants if verdict is not None and verdict.invariants else outcome.invariants
    return {
        "id": finished.trial_id,
        "kind": TrialKind.MANUAL.value,
        "configuration": finished.proposed.candidate.configuration,
        "patches": [patch.name for patch in finished.proposed.candidate.patches],
        "outcome": outcome.kind.value,
        "truncated": outcome.truncated,
        "speedup": verdict.speedup if verdict is not None and verdict.speedup else outcome.speedup,
        "speedup_ci": list(verdict.speedup_ci) if verdict is not None and verdict.speedup_ci else None,
        "verified": verdict is not None and verdict.verified,
        "reasons": list(verdict.reasons) if verdict is not None else [],
        "invariants": [
            each.model_dump(
                mode="json", include={"layer", "name", "status", "expected", "observed", "reason"}
            )
            for each in invariants
        ],
        "attribution": attribution_value(outcome.attribution),
        "warnings": list(outcome.warnings),
        "cost_gpu_hours": outcome.gpu_hours,
    }


def _words(finished: TrialState, verdict: FinalistVerdict | None) -> str:
    if finished.outcome is None:
        return ""
    lines = [f"{finished.trial_id}: {outcome_words(finished.outcome, TrialKind.MANUAL)}"]
    if verdict is not None and verdict.speedup is not None and verdict.speedup_ci is not None:
        low, high = verdict.speedup_ci
        word = "verified" if verdict.verified else "not verified"
        lines.append(f"{word}: {verdict.speedup:.3f}× [{low:.3f}, {high:.3f}] (99 %, {verdict.pairs} pairs)")
        lines += [f"  {reason}" for reason in verdict.reasons]
    lines += [f"  {each.status.value:<8}{each.name}: {each.reason}" for each in finished.outcome.invariants]
    return "\n".join(lines)
