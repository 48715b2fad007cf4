"""The surface of the command line is an interface that scripts rely on."""

from __future__ import annotations

import argparse

import pytest

from infrarsi_tui.cli.commands import COMMANDS, load_command
from infrarsi_tui.cli.parser import build_parser

_COMMON = {"--help", "--json"}
_DISPLAY = _COMMON | {"--display"}
_STUDY_OPTIONS = _DISPLAY | {"--executor", "--no-store", "--out", "--seed"}
_RUN_OPTIONS = _STUDY_OPTIONS | {
    *("--trials", "--gpu-hours", "--deadline", "--advisor", "--patches", "--deploy", "--on-event"),
}
SURFACE: dict[str, tuple[tuple[str, ...], set[str]]] = {
    "check": (("TASK",), _COMMON | {"--executor"}),
    "run": (("TASK",), _RUN_OPTIONS),
    "submit": (("TASK",), _RUN_OPTIONS | {"--engine-partition", "--engine-time-min", "--inside"}),
    "diagnose": (("TASK",), _STUDY_OPTIONS),
    "trial": (("TASK",), _STUDY_OPTIONS | {"--set", "--patch"}),
    "search": (("STUDY",), _DISPLAY),
    "report": (("STUDY",), _DISPLAY),
    "resume": (("STUDY",), _DISPLAY),
    "attach": (("STUDY",), _DISPLAY),
    "status": (("STUDY",), _COMMON),
    "stop": (("STUDY",), _COMMON),
    "doctor": ((), _COMMON | {"--partition", "--study-dir", "--internet", "--on-node"}),
    "deploy": (("STUDY",), _COMMON | {"--to", "--dry-run"}),
}
CHOICES = {
    ("run", "--executor"): {"local", "slurm"},
    ("run", "--display"): {"auto", "tui", "plain", "log", "none"},
    ("run", "--advisor"): {"rules", "claude", "none"},
    ("run", "--patches"): {"off", "ask", "auto"},
}
REPEATABLE = {("trial", "--set"), ("trial", "--patch")}
EXPLANATION = """
The command line is an interface: scripts, schedulers and other people's notes hold its words. Before a new
command or option, see whether the task file is the place for it (a setting of the project), or whether an
option that exists can mean it. If it must be, add it here, to CHANGELOG.md and to README.md. To remove or
rename one breaks scripts and needs a new major version.
"""


def _commands() -> dict[str, argparse.ArgumentParser]:
    for action in build_parser("0")._actions:
        if isinstance(action, argparse._SubParsersAction):
            return dict(action.choices)
    return {}


def _options(parser: argparse.ArgumentParser) -> set[str]:
    return {name for action in parser._actions for name in action.option_strings if name.startswith("--")}


def _positionals(parser: argparse.ArgumentParser) -> tuple[str, ...]:
    return tuple(str(action.metavar) for action in parser._actions if not action.option_strings)


def test_commands_are_the_listed_ones() -> None:
    """No command appears or vanishes unseen."""
    assert set(_commands()) == set(SURFACE), EXPLANATION


@pytest.mark.parametrize("name", sorted(SURFACE))
def test_options_of_a_command_are_the_listed_ones(name: str) -> None:
    """No option or positional of a command appears or vanishes unseen."""
    parser = _commands()[name]
    assert (_positionals(parser), _options(parser)) == SURFACE[name], EXPLANATION


def test_choices_are_the_listed_ones() -> None:
    """The words that an option accepts are frozen too, in every command that has it."""
    for (_, option), expected in CHOICES.items():
        for parser in _commands().values():
            for action in parser._actions:
                if option in action.option_strings:
                    assert set(action.choices or ()) == expected, EXPLANATION


def test_only_listed_options_repeat() -> None:
    """Repeatable options are repeated, one value each; none takes a space-separated list."""
    for name, parser in _commands().items():
        for action in parser._actions:
            repeats = isinstance(action, argparse._AppendAction)
            assert repeats == any((name, option) in REPEATABLE for option in action.option_strings)
            assert action.nargs in (None, 0)


def test_every_command_says_what_it_does() -> None:
    """Commands, positionals and options all carry a help text."""
    for name, parser in _commands().items():
        assert parser.description, name
        assert all(action.help for action in parser._actions), name


@pytest.mark.parametrize("name", sorted(SURFACE))
def test_every_command_has_its_function(name: str) -> None:
    """Each name of the parser leads to a function, and no function is unreachable."""
    assert set(COMMANDS) == set(SURFACE)
    assert callable(load_command(name))
