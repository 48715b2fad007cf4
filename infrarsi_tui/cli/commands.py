"""Which function serves which command; its module is imported only when it is asked for."""

from __future__ import annotations

import importlib
from argparse import Namespace
from collections.abc import Callable, Mapping
from typing import cast

Command = Callable[[Namespace], int]

COMMANDS: Mapping[str, tuple[str, str]] = {
    "check": ("infrarsi_tui.cli.check", "check"),
    "run": ("infrarsi_tui.cli.run", "run"),
    "submit": ("infrarsi_tui.cli.submit", "submit"),
    "diagnose": ("infrarsi_tui.cli.run", "diagnose"),
    "search": ("infrarsi_tui.cli.run", "search"),
    "report": ("infrarsi_tui.cli.run", "report"),
    "resume": ("infrarsi_tui.cli.run", "resume"),
    "trial": ("infrarsi_tui.cli.trial", "trial"),
    "attach": ("infrarsi_tui.cli.attach", "attach"),
    "status": ("infrarsi_tui.cli.status", "status"),
    "stop": ("infrarsi_tui.cli.status", "stop"),
    "doctor": ("infrarsi_tui.cli.doctor", "doctor"),
    "deploy": ("infrarsi_tui.cli.deploy", "deploy_command"),
}


def load_command(name: str) -> Command:
    """The function of a command."""
    module, function = COMMANDS[name]
    return cast(Command, getattr(importlib.import_module(module), function))
