"""`check`: validate a task, show what would be run; submits nothing."""

from __future__ import annotations

import dataclasses
from argparse import Namespace
from typing import Any

from engine.errors import ExitCode
from engine.task.load import Task, load_task
from infrarsi_tui.streams import emit_json, emit_text


def check(arguments: Namespace) -> int:
    """Validate a task file."""
    task = load_task(arguments.task)
    value = describe(task) | _slurm(task, arguments.executor)
    if arguments.json:
        emit_json(value)
    else:
        emit_text(_words(value))
    is_refused = value["test_only"] is not None and not value["test_only"]["ok"]
    return ExitCode.USAGE if is_refused and arguments.executor == "slurm" else ExitCode.DONE


def describe(task: Task) -> dict[str, Any]:
    """Baseline command, allocation, active parameters and locks of a task."""
    settings = task.settings
    return {
        "task": settings.task.name,
        "file": str(task.file),
        "project": str(task.project),
        "launcher": settings.task.launcher,
        "command": list(settings.task.command),
        "python": task.python,
        "allocation": {
            "nodes": settings.allocation.nodes,
            "ranks": settings.allocation.world_size,
            "device": settings.allocation.device,
            "memory_limit_gib": settings.allocation.memory_limit_gib,
        },
        "parameters": [
            {
                "mechanism": parameter.mechanism,
                "values": list(parameter.values),
                "initial": list(parameter.initial),
                "default": parameter.default,
            }
            for parameter in task.space.parameters
        ],
        "configurations": task.space.size("all"),
        "editable": list(settings.scope.editable),
        "locked": list(settings.scope.locked),
        "warnings": list(task.warnings),
    }


def _slurm(task: Task, executor: str | None) -> dict[str, Any]:
    """The script of a trial and what Slurm says to it; both None where trials run on this machine."""
    wanted = executor or ("slurm" if "slurm" in task.settings.model_fields_set else "local")
    if wanted != "slurm":
        return {"submission_script": None, "test_only": None}
    from infrarsi_tui.cluster import ask_slurm, preview
    from infrarsi_tui.composition import default_out

    script = preview(task, default_out(task).resolve())
    answer = ask_slurm(script)
    return {"submission_script": script, "test_only": None if answer is None else dataclasses.asdict(answer)}


def _words(value: dict[str, Any]) -> str:
    allocation = value["allocation"]
    lines = [
        f"{value['task']}: {value['file']} is valid",
        f"  baseline   {value['launcher']}: {' '.join(value['command'])}",
        f"  allocation {allocation['ranks']} ranks on {allocation['nodes']} node(s), {allocation['device']}",
        f"  scope      editable {value['editable'] or 'nothing'}, locked {value['locked'] or 'nothing'}",
        f"  space      {value['configurations']:,} configurations",
    ]
    width = max((len(parameter["mechanism"]) for parameter in value["parameters"]), default=0)
    for parameter in value["parameters"]:
        shown = ", ".join(
            f"[{choice}]" if choice == parameter["default"] else str(choice) for choice in parameter["values"]
        )
        lines.append(f"    {parameter['mechanism']:<{width}}  {shown}")
    lines.append("  [x] = the value of the unchanged job")
    lines += _slurm_words(value)
    lines += [f"  warning: {warning}" for warning in value["warnings"]]
    return "\n".join(lines)


def _slurm_words(value: dict[str, Any]) -> list[str]:
    script, answer = value["submission_script"], value["test_only"]
    if script is None:
        return []
    lines = ["  submission script", *(f"    {line}" for line in script.splitlines())]
    if answer is None:
        return [*lines, "  sbatch --test-only: not asked, sbatch is not on PATH here"]
    lines += ["  sbatch --test-only: " + ("accepted" if answer["ok"] else "REFUSED")]
    lines += [f"    {line}" for line in answer["text"].splitlines()]
    return lines if answer["hint"] is None else [*lines, f"  hint: {answer['hint']}"]
