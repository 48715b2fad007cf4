"""`check`: validate a task, show what would be run; submits nothing."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

from engine.errors import ExitCode
from engine.task.load import Task, load_task
from infrarsi_tui.streams import emit_json, emit_text


def check(arguments: Namespace) -> int:
    """Validate a task file."""
    task = load_task(arguments.task)
    value = describe(task)
    if arguments.json:
        emit_json(value)
    else:
        emit_text(_words(value))
    return ExitCode.DONE


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
    lines += [f"  warning: {warning}" for warning in value["warnings"]]
    return "\n".join(lines)
