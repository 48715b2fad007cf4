"""Flags of the command, in four styles: `--x v`, `--x=v`, `--x`, `--x` / `--no-x`."""

from __future__ import annotations

from engine.schema.task import FlagBinding, Unset
from engine.task.bindings.literal import UNSET, BindingError, Literal, text_of


def read(command: list[str], binding: FlagBinding) -> Literal | Unset:
    """What the command holds: a text for value and equals, a boolean for bare and negatable.

    As argument parsers do, the last occurrence counts. A bare flag that is absent, and a negatable flag of
    which neither form is there, are UNSET.

    Raises:
        BindingError: a flag at the end of the command that lacks its value.
    """
    if binding.style in ("bare", "negatable"):
        present = [word == binding.flag for word in _options(command) if word in _forms(binding)]
        return present[-1] if present else UNSET
    index = _last(command, binding.flag)
    if index is None:
        return UNSET
    if command[index] != binding.flag:
        return command[index][len(binding.flag) + 1 :]
    if index + 1 >= len(command):
        raise BindingError("flag", "the command ends with this flag, without a value", value=binding.flag)
    return command[index + 1]


def write(command: list[str], binding: FlagBinding, literal: Literal | Unset) -> list[str]:
    """The command with one flag set or removed; a new one goes to the end, before `--`."""
    if binding.style in ("bare", "negatable"):
        return _write_switch(command, binding, literal)
    index = _last(command, binding.flag)
    if isinstance(literal, Unset):
        while index is not None:
            command = command[:index] + command[index + (2 if command[index] == binding.flag else 1) :]
            index = _last(command, binding.flag)
        return command
    if index is None:
        text = text_of(literal)
        new = [f"{binding.flag}={text}"] if binding.style == "equals" else [binding.flag, text]
        return _appended(command, new)
    old = read(command, binding)
    text = text_of(literal, like=old if isinstance(old, str) else None)
    if command[index] == binding.flag:
        return [*command[: index + 1], text, *command[index + 2 :]]
    return [*command[:index], f"{binding.flag}={text}", *command[index + 1 :]]


def negated(flag: str) -> str:
    """The negative form of a flag: --x → --no-x."""
    return f"--no-{flag.removeprefix('--')}"


def _write_switch(command: list[str], binding: FlagBinding, literal: Literal | Unset) -> list[str]:
    word = None
    if literal is True:
        word = binding.flag
    elif literal is False and binding.style == "negatable":
        word = negated(binding.flag)
    end = len(_options(command))
    positions = [i for i in range(end) if command[i] in _forms(binding)]
    if word is not None and not positions:
        return _appended(command, [word])
    keep = positions[-1] if word is not None else None
    result = []
    for index, old in enumerate(command):
        if index == keep and word is not None:
            result.append(word)
        elif index not in positions:
            result.append(old)
    return result


def _forms(binding: FlagBinding) -> tuple[str, ...]:
    return (binding.flag, negated(binding.flag)) if binding.style == "negatable" else (binding.flag,)


def _options(command: list[str]) -> list[str]:
    """The part of the command in which flags are read: up to `--`."""
    return command[: command.index("--")] if "--" in command else command


def _last(command: list[str], flag: str) -> int | None:
    options = _options(command)
    found = [i for i, word in enumerate(options) if word == flag or word.startswith(f"{flag}=")]
    return found[-1] if found else None


def _appended(command: list[str], words: list[str]) -> list[str]:
    end = len(_options(command))
    return [*command[:end], *words, *command[end:]]
