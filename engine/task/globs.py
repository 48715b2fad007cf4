"""Globs of the scope: relative to the project, `/` between parts, `**` for any number of folders.

A pattern whose last part has no wildcard also covers everything below it: `src` is `src/**`.
"""

from __future__ import annotations

import functools
import re
from pathlib import PurePosixPath

_WILDCARD = re.compile(r"[*?\[]")


def glob_problem(pattern: str) -> str | None:
    """What is wrong with a glob, or None."""
    if not pattern.strip("/ "):
        return "empty"
    if pattern.startswith(("/", "~")):
        return "absolute"
    if ".." in PurePosixPath(pattern).parts:
        return "leaves the project"
    return None


def matches_any(path: str, patterns: list[str]) -> bool:
    """Whether a path (relative to the project) is covered by one of the globs."""
    return any(_compiled(pattern).fullmatch(path) for pattern in patterns)


@functools.lru_cache(maxsize=1024)
def _compiled(pattern: str) -> re.Pattern[str]:
    is_folder = pattern.endswith("/")
    parts = [part for part in pattern.split("/") if part not in ("", ".")]
    expression = ""
    for index, part in enumerate(parts):
        is_last = index == len(parts) - 1
        if part == "**":
            expression += ".*" if is_last else "(?:[^/]+/)*"
        else:
            expression += _part(part) + ("" if is_last else "/")
    if is_folder:
        expression += "/.*"
    elif not _WILDCARD.search(parts[-1]):
        expression += "(?:/.*)?"
    return re.compile(expression, re.DOTALL)


def _part(part: str) -> str:
    """One part of a glob as a regular expression."""
    result, position = "", 0
    while position < len(part):
        character = part[position]
        close = part.find("]", position + 2) if character == "[" else -1
        if close > 0:
            inside = part[position + 1 : close].replace("\\", r"\\").replace("[", r"\[")
            result += f"[^/{inside[1:]}]" if inside[0] == "!" else f"[{inside}]"
            position = close + 1
            continue
        result += {"*": "[^/]*", "?": "[^/]"}.get(character, re.escape(character))
        position += 1
    return result
