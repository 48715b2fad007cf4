"""What leaves a study carries no path, host or user name; the same thing gets the same pseudonym."""

from __future__ import annotations

import getpass
import re
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_PATH = re.compile(r"(?<![\w.~>…])(?:/[\w.@+-]+){2,}/?")
_LAST_PARTS = 2


class Redactor:
    """Replaces the private parts of texts.

    Args:
        folders: Folders with a meaning, as (path, pseudonym), for instance the study's.
        hosts: Names of machines, as (name, pseudonym); a domain after a name goes with it.
    """

    def __init__(self, folders: Sequence[tuple[Path, str]], hosts: Sequence[tuple[str, str]] = ()) -> None:
        known = sorted(((str(path), name) for path, name in folders), key=lambda pair: -len(pair[0]))
        self._literal = [(text, name) for text, name in known if len(text) > 1]
        self._hosts = [(name, pseudonym) for name, pseudonym in hosts if name]
        self._words = [(socket.gethostname(), "<host>"), (_user(), "<user>")]

    def text(self, text: str) -> str:
        """A text without private parts; of an unknown path only the last two parts stay."""
        for literal, name in self._literal:
            text = text.replace(literal, name)
        text = _PATH.sub(lambda match: _shorten(match[0]), text)
        for host, name in self._hosts:
            text = re.sub(rf"(?<![\w-]){re.escape(host)}(?:\.[a-zA-Z][\w-]*)*(?![\w-])", name, text)
        for word, name in self._words:
            if len(word) > 1:
                text = re.sub(rf"(?<![\w-]){re.escape(word)}(?![\w-])", name, text)
        return text

    def value(self, value: Any) -> Any:
        """A JSON value with every text in it redacted; keys stay."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, list | tuple):
            return [self.value(each) for each in value]
        if isinstance(value, dict):
            return {key: self.value(each) for key, each in value.items()}
        return value


def _shorten(path: str) -> str:
    parts = path.strip("/").split("/")
    return "…/" + "/".join(parts[-_LAST_PARTS:])


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return ""
