"""`doctor`: look at cluster, machine, disk and terminal before anything is spent on them."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

import tomli_w

from engine.errors import ExitCode
from infrarsi_tui.cli.terminal import front_end_checks
from infrarsi_tui.composition import STUDIES
from infrarsi_tui.streams import emit_json, emit_text, narrate
from slurm.doctor.check import Check
from slurm.doctor.survey import Survey, survey

_MARKS = {"ok": "✓ ok", "warn": "! warn", "fail": "✗ FAIL", "skipped": "- skip"}


def doctor(arguments: Namespace) -> int:
    """Make all checks; 3 when something will not work."""
    if arguments.on_node:
        narrate("submits one short job (1 CPU) and waits for it, five minutes at most")
    found = survey(
        arguments.study_dir or Path(STUDIES),
        arguments.partition,
        internet=arguments.internet,
        on_node=arguments.on_node,
        tell=narrate,
    )
    checks = [*found.checks, *front_end_checks()]
    if arguments.json:
        value = {"checks": [check.value() for check in checks], "slurm_section": found.slurm_section}
        emit_json(value)
    else:
        emit_text(words(checks, found))
    return ExitCode.INFRASTRUCTURE if found.failed else ExitCode.DONE


def words(checks: list[Check], found: Survey) -> str:
    """A table by group; what is not ok is explained; at the end the lines for the task file."""
    width = max(len(_short(check)) for check in checks)
    lines: list[str] = []
    for group in dict.fromkeys(check.group for check in checks):
        lines += ["", group]
        for check in (one for one in checks if one.group == group):
            lines.append(
                f"  {_MARKS.get(check.status, check.status):<7} {_short(check):<{width}}  {check.found}"
            )
            indent = " " * (width + 12)
            if check.meaning and check.status != "ok":
                lines.append(f"{indent}{check.meaning}")
            if check.hint:
                lines.append(f"{indent}→ {check.hint}")
    count = {status: sum(check.status == status for check in checks) for status in _MARKS}
    lines += ["", f"{count['ok']} ok, {count['warn']} with a drawback, {count['fail']} will not work"]
    if found.slurm_section:
        lines += ["", "For infrarsi.toml:", "", tomli_w.dumps({"slurm": found.slurm_section})]
    return "\n".join(lines).strip("\n")


def _short(check: Check) -> str:
    return check.name.removeprefix("node/")
