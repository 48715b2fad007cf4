"""The command line. Its surface is frozen by tests/cli/test_surface.py."""

from __future__ import annotations

import argparse
import datetime as dt
from pathlib import Path
from typing import Any, NoReturn

from engine.errors import UsageError

DISPLAYS = ("auto", "tui", "plain", "log", "none")


class Parser(argparse.ArgumentParser):
    """argparse that raises UsageError instead of leaving the process, and takes no abbreviated options."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        """Turn argparse's complaint into our error."""
        raise UsageError(message, key="command line", hint=f"`{self.prog} --help` shows what is possible")


def build_parser(version: str) -> Parser:
    """The whole command line."""
    parser = Parser(prog="infrarsi", description=__doc__.splitlines()[0] if __doc__ else None)
    parser.description = "Speeds up your own LLM training job without changing what is trained."
    parser.add_argument("--version", action="version", version=f"infrarsi {version}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", parser_class=Parser)
    _add_task_commands(commands)
    _add_study_commands(commands)
    return parser


def _command(
    commands: argparse._SubParsersAction[Parser], name: str, summary: str
) -> tuple[Parser, argparse._ArgumentGroup]:
    command = commands.add_parser(name, help=summary, description=summary)
    options = command.add_argument_group("common")
    options.add_argument("--json", action="store_true", help="one JSON object on stdout, also on errors")
    return command, options


def _add_task_commands(commands: argparse._SubParsersAction[Parser]) -> None:
    check, _ = _command(commands, "check", "Validate a task file; submit nothing")
    _task(check)
    run, _ = _command(commands, "run", "All five stages on a task")
    _task(run)
    _study_options(run)
    run.add_argument("--trials", type=_positive, metavar="N", help="search trials at most")
    run.add_argument("--gpu-hours", type=_positive_float, metavar="H", help="GPU-hours at most")
    run.add_argument("--deadline", type=_deadline, metavar="ISO", help="stop searching at this time")
    run.add_argument("--advisor", choices=("rules", "claude", "none"), help="who proposes ideas")
    run.add_argument("--patches", choices=("off", "ask", "auto"), help="code patches by the advisor")
    run.add_argument("--deploy", type=Path, metavar="DIR", help="apply the verified winner to this folder")
    diagnose, _ = _command(commands, "diagnose", "Measure the unchanged job: phases, memory, noise")
    _task(diagnose)
    _study_options(diagnose)
    trial, _ = _command(commands, "trial", "One candidate against the baseline, verified")
    _task(trial)
    _study_options(trial)
    trial.add_argument(
        "--set", action="append", default=[], metavar="MECHANISM=VALUE", dest="assignments", help="repeatable"
    )
    trial.add_argument(
        "--patch",
        action="append",
        default=[],
        type=Path,
        metavar="FILE",
        dest="patch_files",
        help="repeatable",
    )


def _add_study_commands(commands: argparse._SubParsersAction[Parser]) -> None:
    for name, summary in (
        ("search", "Go on with the search of a study"),
        ("report", "Verify the finalists of a study and write its report"),
        ("resume", "Go on with a study that was stopped or killed"),
    ):
        command, _ = _command(commands, name, summary)
        _study(command)
        _display(command)
    status, _ = _command(commands, "status", "Where a study stands")
    _study(status)
    stop, _ = _command(commands, "stop", "End a running study; what was measured stays")
    _study(stop)
    deploy, _ = _command(commands, "deploy", "Apply the verified winner to a project")
    _study(deploy)
    deploy.add_argument("--to", type=Path, required=True, metavar="DIR", help="a clean git working tree")
    deploy.add_argument("--dry-run", action="store_true", help="show the commits, change nothing")


def _task(command: Parser) -> None:
    command.add_argument("task", type=Path, metavar="TASK", help="infrarsi.toml or its folder")


def _study(command: Parser) -> None:
    command.add_argument("study", type=Path, metavar="STUDY", help="the study's folder")


def _display(command: Parser) -> None:
    command.add_argument("--display", choices=DISPLAYS, default="auto", help="narration on stderr")


def _study_options(command: Parser) -> None:
    command.add_argument(
        "--executor", choices=("local",), default="local", help="where trials run: local = this machine"
    )
    command.add_argument("--out", type=Path, metavar="DIR", help="the study folder to make")
    command.add_argument(
        "--no-store", action="store_true", help="keep no experience; this version keeps none in any case"
    )
    command.add_argument("--seed", type=_natural, metavar="N", help="seed of the search")
    _display(command)


def _positive(text: str) -> int:
    value = _whole(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not at least 1")
    return value


def _natural(text: str) -> int:
    value = _whole(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"{text} is negative")
    return value


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None


def _positive_float(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number") from None
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not a positive number")
    return value


def _deadline(text: str) -> float:
    try:
        return dt.datetime.fromisoformat(text).astimezone().timestamp()
    except (ValueError, OverflowError):
        raise argparse.ArgumentTypeError(f"{text!r} is no ISO date and time") from None
