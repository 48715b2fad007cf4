"""Which function serves which command."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Mapping

from infrarsi_tui.cli.check import check
from infrarsi_tui.cli.deploy import deploy_command
from infrarsi_tui.cli.run import diagnose, report, resume, run, search
from infrarsi_tui.cli.status import status, stop
from infrarsi_tui.cli.trial import trial

COMMANDS: Mapping[str, Callable[[Namespace], int]] = {
    "check": check,
    "run": run,
    "diagnose": diagnose,
    "search": search,
    "report": report,
    "resume": resume,
    "trial": trial,
    "status": status,
    "stop": stop,
    "deploy": deploy_command,
}
