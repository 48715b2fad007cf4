"""Reading a unified diff: which files it touches, and how."""

from __future__ import annotations

import dataclasses
import re
from typing import Literal

Change = Literal["modify", "create", "delete", "rename", "copy", "mode"]
_HUNK = re.compile(r"@@ -\d+(?:,(\d+))? \+\d+(?:,(\d+))? @@")
_ESCAPE = re.compile(rb"\\(?:([0-7]{3})|(.))", re.DOTALL)
_HEADERS = (
    *("old mode", "new mode", "deleted file mode", "new file mode", "copy from", "copy to"),
    *("rename from", "rename to", "similarity index", "dissimilarity index", "index", "---", "+++"),
)
_LETTERS = {b"a": b"\a", b"b": b"\b", b"t": b"\t", b"n": b"\n", b"v": b"\v", b"f": b"\f", b"r": b"\r"}


class PatchSyntaxError(ValueError):
    """The text is no unified diff, or one of a kind that is refused; the message is for people."""


@dataclasses.dataclass
class PatchedFile:
    """One file of a patch: its path before and after (None: no file), and its mode where told."""

    old: str | None
    new: str | None
    change: Change
    mode: str | None = None

    @property
    def paths(self) -> tuple[str, ...]:
        """The paths that are touched."""
        return tuple(dict.fromkeys(path for path in (self.old, self.new) if path is not None))


def read_files(text: str) -> list[PatchedFile]:
    """The files of a patch, in order.

    Raises:
        PatchSyntaxError: no file, a broken hunk, a binary patch, a link or a submodule.
    """
    lines = text.split("\n")
    files: list[PatchedFile] = []
    position = 0
    while position < len(lines):
        line = lines[position]
        if line.startswith("diff --git "):
            entry, position = _git_entry(lines, position)
            files.append(entry)
        elif (
            line.startswith("--- ")
            and lines[position + 1 : position + 2]
            and lines[position + 1].startswith("+++ ")
        ):
            old, new = _name(line[4:]), _name(lines[position + 1][4:])
            change: Change = "create" if old is None else "delete" if new is None else "modify"
            files.append(PatchedFile(old, new, change))
            position = _skip_hunks(lines, position + 2)
        elif line.startswith("@@ -") and _HUNK.match(line):
            raise PatchSyntaxError(f"line {position + 1}: a hunk without the names of its file")
        else:
            position += 1
    if not files:
        raise PatchSyntaxError("no file is changed: not a unified diff")
    return files


def _git_entry(lines: list[str], start: int) -> tuple[PatchedFile, int]:
    headers, position = _headers(lines, start + 1)
    for key in ("new file mode", "new mode", "old mode", "deleted file mode"):
        _check_mode(headers.get(key), start)
    old, new = _header_names(lines[start])
    change: Change = "mode" if "new mode" in headers else "modify"
    if "rename from" in headers or "copy from" in headers:
        change = "rename" if "rename from" in headers else "copy"
        old = _unquoted(headers.get(f"{change} from", ""))
        new = _unquoted(headers.get(f"{change} to", ""))
    elif "---" in headers and "+++" in headers:
        old, new = _name(headers["---"]), _name(headers["+++"])
        change = "create" if old is None else "delete" if new is None else "modify"
    elif "new file mode" in headers:
        old, change = None, "create"
    elif "deleted file mode" in headers:
        new, change = None, "delete"
    if old is None and new is None:
        raise PatchSyntaxError(f"line {start + 1}: the names of the file cannot be told")
    mode = headers.get("new file mode") or headers.get("new mode")
    return PatchedFile(old, new, change, mode), _skip_hunks(lines, position)


def _headers(lines: list[str], position: int) -> tuple[dict[str, str], int]:
    """The extended header lines of one file, and where its hunks begin."""
    found: dict[str, str] = {}
    while position < len(lines):
        line = lines[position]
        if line.startswith(("GIT binary patch", "Binary files ")):
            raise PatchSyntaxError(f"line {position + 1}: binary patches are refused")
        key = next((key for key in _HEADERS if line.startswith(key + " ")), None)
        if key is None:
            break
        found[key] = line[len(key) + 1 :]
        position += 1
        if key == "index" and found[key].endswith((" 120000", " 160000")):
            _check_mode(found[key][-6:], position - 1)
        if key == "+++":
            break
    return found, position


def _check_mode(mode: str | None, line: int) -> None:
    if mode is None or mode.strip() in ("100644", "100755"):
        return
    what = {"120000": "symbolic links", "160000": "submodules"}.get(mode.strip(), f"files of mode {mode}")
    raise PatchSyntaxError(f"line {line + 1}: patches to {what} are refused")


def _skip_hunks(lines: list[str], position: int) -> int:
    """The line after the hunks that begin here; their counts decide, so that content is never a header."""
    while position < len(lines) and (match := _HUNK.match(lines[position])):
        old, new = (int(count) if count is not None else 1 for count in match.groups())
        start, position = position, position + 1
        while old > 0 or new > 0:
            line = lines[position] if position < len(lines) else "\0"
            kind = line[:1] or " "
            if kind not in " -+\\\r":
                raise PatchSyntaxError(f"line {start + 1}: the hunk has fewer lines than its header says")
            old -= kind in " -\r"
            new -= kind in " +\r"
            position += 1
        while position < len(lines) and lines[position].startswith("\\"):
            position += 1
    return position


def _header_names(line: str) -> tuple[str | None, str | None]:
    """The names of `diff --git a/x b/x`, which are told only where both are the same."""
    rest = line.removeprefix("diff --git ").rstrip("\r")
    if rest.startswith('"'):
        end = re.match(r'"(?:[^"\\]|\\.)*"', rest)
        first = None if end is None else _name(end[0])
        return first, first
    half = len(rest) // 2
    first, second = rest[:half], rest[half + 1 :]
    if _stripped(first) is not None and _stripped(first) == _stripped(second):
        return _stripped(first), _stripped(second)
    return None, None


def _name(text: str) -> str | None:
    """The path of a `---` or `+++` line, its first part removed; None for /dev/null."""
    text = text.rstrip("\r")
    if not text.startswith('"'):
        text = text.split("\t", 1)[0]
    path = _unquoted(text)
    if path == "/dev/null":
        return None
    stripped = _stripped(path)
    if stripped is None:
        raise PatchSyntaxError(f"{path!r} has no a/ or b/ before its name")
    return stripped


def _stripped(path: str) -> str | None:
    _, slash, rest = path.partition("/")
    return rest if slash and rest else None


def _unquoted(text: str) -> str:
    r"""A path as git writes it: names with special characters are quoted, with \ooo for bytes."""
    text = text.rstrip("\r")
    if not text.startswith('"'):
        return text
    end = re.match(r'"((?:[^"\\]|\\.)*)"', text, re.DOTALL)
    if end is None:
        raise PatchSyntaxError(f"{text!r}: the quote does not end")
    raw = _ESCAPE.sub(
        lambda match: bytes([int(match[1], 8) & 0xFF]) if match[1] else _LETTERS.get(match[2], match[2]),
        end[1].encode("utf-8", "surrogateescape"),
    )
    return raw.decode("utf-8", "surrogateescape")
