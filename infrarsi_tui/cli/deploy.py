"""`deploy`: apply a study's verified winner to a project."""

from __future__ import annotations

from argparse import Namespace

from engine.errors import ExitCode
from engine.journal.folder import StudyFolder
from engine.journal.log import read_entries
from engine.journal.state import replay
from engine.journal.summary import verified_verdict
from engine.schema.study import Deployed
from engine.stages.deployment import Deployment, deploy
from engine.task.load import load_task
from infrarsi_tui.composition import existing_study
from infrarsi_tui.streams import emit_json, emit_text, narrate


def deploy_command(arguments: Namespace) -> int:
    """Deploy, or show what a deployment would change."""
    folder = StudyFolder.open(arguments.study)
    if verified_verdict(replay(read_entries(folder.journal))) is None:
        narrate("the study has no verified winner: nothing to deploy")
        if arguments.json:
            emit_json({"deployed": None, "reason": "no verified winner"})
        return ExitCode.NO_IMPROVEMENT
    if arguments.dry_run:
        state = replay(read_entries(folder.journal))
        done = deploy(folder, load_task(folder.task_file), state, arguments.to, dry_run=True)
    else:
        with existing_study(arguments.study, None, runs_trials=False) as study:
            done = deploy(folder, study.task, study.state, arguments.to, dry_run=False)
            study.session.record(Deployed(target=done.target, branch=done.branch, commits=done.commits))
    _show(done, arguments)
    return ExitCode.DONE


def _show(done: Deployment, arguments: Namespace) -> None:
    if arguments.json:
        emit_json(
            {
                "target": done.target,
                "branch": done.branch,
                "commits": list(done.commits),
                "diff": done.diff,
                "rollback": list(done.rollback),
                "dry_run": done.dry_run,
            }
        )
        return
    emit_text(done.diff or "the winner equals the project as it is")
    if not done.dry_run:
        narrate(f"{done.target} is on branch {done.branch} with {len(done.commits)} new commit(s)")
        narrate("roll back with:")
        for line in done.rollback:
            narrate(f"  {line}")
