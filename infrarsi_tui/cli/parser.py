"""The command line. Its surface is frozen by tests/cli/test_surface.py."""

from __future__ import annotations

import argparse
import datetime as dt
from pathlib import Path
from typing import Any, NoReturn

from engine.errors import UsageError

EXECUTORS = ("local", "slurm")
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
    _add_doctor(commands)
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
    check.add_argument(
        "--executor", choices=EXECUTORS, help="slurm: show and test the script of a trial; default: [slurm]"
    )
    run, _ = _command(commands, "run", "All five stages on a task")
    _task(run)
    _study_options(run)
    _run_options(run)
    submit, _ = _command(
        commands, "submit", "Unattended: the engine runs as a small Slurm job and survives logout"
    )
    _task(submit)
    _study_options(submit)
    submit.set_defaults(executor="slurm")
    _run_options(submit)
    _engine_options(submit)
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
        command.epilog = "A study that another engine works on is watched instead (with --json: exit code 3)."
        _study(command)
        _display(command)
    attach, _ = _command(commands, "attach", "Watch a study that another process runs")
    attach.epilog = "Ends with the engine, and with its exit code. Ctrl-C ends the watching only."
    _study(attach)
    _display(attach)
    status, _ = _command(commands, "status", "Where a study stands")
    _study(status)
    stop, _ = _command(commands, "stop", "End a running study; what was measured stays")
    _study(stop)
    deploy, _ = _command(commands, "deploy", "Apply the verified winner to a project")
    _study(deploy)
    deploy.add_argument("--to", type=Path, required=True, metavar="DIR", help="a clean git working tree")
    deploy.add_argument("--dry-run", action="store_true", help="show the commits, change nothing")


def _add_doctor(commands: argparse._SubParsersAction[Parser]) -> None:
    doctor, _ = _command(commands, "doctor", "Look at cluster, machine, disk and terminal; change nothing")
    doctor.add_argument("--partition", metavar="P", help="partition to look at; default: the cluster's")
    doctor.add_argument(
        "--study-dir", type=Path, metavar="DIR", help="where studies will lie; default: as of run"
    )
    doctor.add_argument("--internet", action="store_true", help="also try to reach api.anthropic.com")
    doctor.add_argument(
        "--on-node", action="store_true", help="also look at a node, by one short job on a CPU"
    )


def _task(command: Parser) -> None:
    command.add_argument("task", type=Path, metavar="TASK", help="infrarsi.toml or its folder")


def _study(command: Parser) -> None:
    command.add_argument("study", type=Path, metavar="STUDY", help="the study's folder")


def _display(command: Parser) -> None:
    command.add_argument("--display", choices=DISPLAYS, default="auto", help="narration on stderr")


def _study_options(command: Parser) -> None:
    command.add_argument(
        "--executor",
        choices=EXECUTORS,
        default="local",
        help="where trials run: local = this machine, slurm = jobs on the cluster",
    )
    command.add_argument("--out", type=Path, metavar="DIR", help="the study folder to make")
    command.add_argument(
        "--no-store", action="store_true", help="keep no experience; this version keeps none in any case"
    )
    command.add_argument("--seed", type=_natural, metavar="N", help="seed of the search")
    _display(command)


def _run_options(command: Parser) -> None:
    command.add_argument("--trials", type=_positive, metavar="N", help="search trials at most")
    command.add_argument("--gpu-hours", type=_positive_float, metavar="H", help="GPU-hours at most")
    command.add_argument("--deadline", type=_deadline, metavar="ISO", help="stop searching at this time")
    command.add_argument("--advisor", choices=("rules", "claude", "none"), help="who proposes ideas")
    command.add_argument("--patches", choices=("off", "ask", "auto"), help="code patches by the advisor")
    command.add_argument(
        "--deploy", type=Path, metavar="DIR", help="apply the verified winner to this folder"
    )
    command.add_argument(
        "--on-event",
        metavar="COMMAND",
        help="shell command run when the study is finished, paused, stalled or failed (INFRARSI_EVENT says "
        "which, INFRARSI_STUDY where); `resume` keeps it",
    )


def _engine_options(command: Parser) -> None:
    # No keys of the task file: [slurm] says how the trials' nodes are requested, and is part of the study.
    command.add_argument(
        "--engine-partition",
        metavar="P",
        help="for the engine itself, which needs no GPU; default: the trials'",
    )
    command.add_argument(
        "--engine-time-min",
        type=_positive,
        metavar="N",
        help="the engine job's limit, at which it goes on in a new turn; default: a day, or the partition's",
    )
    command.add_argument(
        "--inside",
        action="store_true",
        help="run the engine inside the GPU allocation, where sites refuse jobs from compute nodes",
    )


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
