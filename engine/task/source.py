"""From a path to parsed TOML, with errors that name file and line."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any, NamedTuple

from engine.errors import TaskFileError
from engine.task.nearest import nearest

FILE_NAME = "infrarsi.toml"
_LINE = re.compile(r"\s*\(at line (\d+), column (\d+)\)")


class Source(NamedTuple):
    """A task file as read: its absolute path, its text, its tables."""

    file: Path
    text: str
    data: dict[str, Any]


def read_source(path: Path) -> Source:
    """Read a task file, given itself or its folder.

    Raises:
        TaskFileError: missing, unreadable, not UTF-8, or not TOML (with line and column).
    """
    file = _find(path)
    try:
        content = file.read_bytes()
    except OSError as error:
        raise TaskFileError(f"cannot be read: {error.strerror}", file=str(file)) from error
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise TaskFileError(
            f"not UTF-8: byte 0x{content[error.start]:02x} in line {line}",
            file=str(file),
            rule="a task file is UTF-8 text",
            hint="save the file with the encoding UTF-8",
        ) from error
    try:
        return Source(file, text, tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise _syntax_error(file, text, str(error)) from error
    except RecursionError as error:
        raise TaskFileError("nested too deeply", file=str(file), rule="a task file is TOML") from error


def _syntax_error(file: Path, text: str, message: str) -> TaskFileError:
    match = _LINE.search(message)
    lines = text.splitlines() or [""]
    number = min(int(match[1]), len(lines)) if match else len(lines)
    return TaskFileError(
        f"line {number}{f', column {match[2]}' if match else ''}: not valid TOML: {_LINE.sub('', message)}",
        file=str(file),
        value=lines[number - 1].strip()[:120],
        rule="a task file is TOML 1.0",
        hint='texts need quotes, tables [brackets], every key one value: name = "value"',
    )


def _find(path: Path) -> Path:
    path = path.expanduser().absolute()
    try:
        if path.is_dir():
            path = path / FILE_NAME
            if not path.is_file():
                raise TaskFileError(
                    f"the folder has no {FILE_NAME}",
                    file=str(path),
                    rule="a task is this file or its folder",
                    hint="the README of the product shows a whole one",
                )
        if path.is_file():
            return path
        exists, siblings = path.exists(), [entry.name for entry in path.parent.glob("*.toml")]
    except OSError as error:
        raise TaskFileError(f"cannot be read: {error.strerror}", file=str(path)) from error
    close = nearest(path.name, siblings)
    raise TaskFileError(
        "not a regular file" if exists else "no such file or folder",
        file=str(path),
        rule=f"a task is an {FILE_NAME} or its folder",
        hint=f"did you mean {path.with_name(close)}?" if close else "check the path",
    )
