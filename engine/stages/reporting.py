"""Stage 4: verify the finalists, then write the report for people and for programs."""

from __future__ import annotations

from pathlib import Path

import tomli_w

from engine.diagnosis.nodes import node_values
from engine.durable import write_json, write_text
from engine.journal.state import StudyState
from engine.journal.summary import summarise, verified_verdict
from engine.schema.study import Stage, StageEntered
from engine.schema.trial import Candidate
from engine.search.incumbents import finalists
from engine.stages.context import StudyContext
from engine.stages.redaction import Redactor
from engine.stages.report_markdown import render_report
from engine.stages.search_input import search_input
from engine.stages.verification import complete_verification, plan_verification

FINALISTS = 2
"""At most three are allowed; the third rarely wins and costs as much as the others."""


def run_reporting(study: StudyContext) -> None:
    """Verify what the search found and write report.md, report.json and winner.toml.

    A study without a candidate that beats the noise is reported as it is: no verified improvement.
    """
    if study.state.verdicts is None:
        study.session.record(StageEntered(stage=Stage.REPORTING))
        if study.state.plan is None:
            plan_verification(study, choose_finalists(study))
        complete_verification(study)
    write_report(study)


def choose_finalists(study: StudyContext) -> list[Candidate]:
    """The best measured candidates, as long as the noise does not tell them apart from the very best."""
    search = search_input(study)
    ranked = finalists(search, FINALISTS)
    return [each.candidate for each in ranked if each.log_speedup >= ranked[0].log_speedup - search.noise_sd]


def write_report(study: StudyContext) -> None:
    """Write the report's files from the journal; running it again changes nothing."""
    folder = study.session.folder
    summary = summarise(study.state, folder.root.name)
    summary["verification"] = [verdict.model_dump(mode="json") for verdict in study.state.verdicts or ()]
    summary["nodes"] = node_values(study.state)
    names = [(name, f"node-{number}") for number, name in enumerate(_machines(study.state), 1)]
    redactor = Redactor([(folder.root, "<study>"), (Path(study.created.project), "<project>")], names)
    write_json(folder.report_json, redactor.value(summary))
    write_text(folder.report_markdown, redactor.text(render_report(study)))
    verdict = verified_verdict(study.state)
    if verdict is not None:
        winner = {
            "configuration": dict(verdict.candidate.configuration),
            "patches": [patch.name for patch in verdict.candidate.patches],
            "speedup": verdict.speedup,
            "speedup_ci": list(verdict.speedup_ci or ()),
        }
        write_text(folder.winner, tomli_w.dumps(winner))


def _machines(state: StudyState) -> list[str]:
    """Every node that an outcome names, by its first use."""
    outcomes = [trial.outcome for trial in state.trials.values() if trial.outcome is not None]
    names = [
        name
        for outcome in outcomes
        for name in (
            *outcome.nodes,
            *outcome.suspect_nodes,
            *(outcome.scheduler.nodes if outcome.scheduler is not None else ()),
        )
    ]
    return list(dict.fromkeys(names))
