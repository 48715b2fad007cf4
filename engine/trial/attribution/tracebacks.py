"""Python tracebacks in a log: one exception each, linked to the one that caused it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from engine.schema.evidence import Frame
from engine.trial.attribution.logs import LogLine

_HEADER = "Traceback (most recent call last):"
_FRAME = re.compile(r'^\s+File "(?P<file>[^"]+)", line (?P<line>\d+)(?:, in (?P<name>.+))?$')
_RAISED = re.compile(r"^(?P<type>[A-Za-z_][\w.]*)(?:: ?(?P<message>.*))?$")
_BARE = re.compile(
    r"(?:^|(?<=[\s:\]]))(?P<type>(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception)): (?P<message>\S.*)$"
)
_NO_FAILURES = ("ChildFailedError", "SignalException")
_SYNTAX = ("SyntaxError", "IndentationError", "TabError")
_DIRECT_CAUSE = "The above exception was the direct cause of the following exception:"
_DURING = "During handling of the above exception, another exception occurred:"
_GLOG = re.compile(r"^[WEIF]\d{4} \d\d:")
_LONGEST_MESSAGE = 8
# A failed look-up that a handler answers with the real error is not its cause.
_LOOKUPS = ("KeyError", "AttributeError", "ImportError", "ModuleNotFoundError", "StopIteration", "IndexError")


@dataclass
class LoggedException:
    """One printed exception; frames from the outermost to the innermost."""

    rank: int | None
    type: str
    message: str
    frames: tuple[Frame, ...]
    line: LogLine
    cause: LoggedException | None = None
    direct: bool = field(default=False)

    @property
    def class_name(self) -> str:
        """Type without its module."""
        return self.type.rpartition(".")[2]

    def root(self) -> LoggedException:
        """The exception that began the chain."""
        current = self
        while current.cause is not None:
            if not current.direct and current.cause.class_name in _LOOKUPS:
                break
            current = current.cause
        return current


def read_tracebacks(lines: Sequence[LogLine]) -> list[LoggedException]:
    """Last exception of every chain, in the order of the log; ranks are told apart by their prefix."""
    ranks = dict.fromkeys(line.rank for line in lines)
    ends = [end for rank in ranks for end in _of_one_rank([line for line in lines if line.rank == rank])]
    position = {id(line): index for index, line in enumerate(lines)}
    return sorted(ends, key=lambda exception: position[id(exception.line)])


def read_bare_exceptions(lines: Sequence[LogLine]) -> list[LoggedException]:
    """Lines that name an exception and its message, for logs whose tracebacks are cut off; no frames."""
    found = []
    for index, line in enumerate(lines):
        match = _BARE.search(line.text)
        if match is not None and match["type"] not in _NO_FAILURES:
            own = LogLine(line.number, line.rank, line.text[match.start() :])
            found.append(replace(_exception(own, lines[index + 1 :], ()), line=line))
    return found


def _of_one_rank(lines: Sequence[LogLine]) -> list[LoggedException]:
    ends: list[LoggedException] = []
    frames: list[Frame] = []
    link: str | None = None
    inside = False
    for index, line in enumerate(lines):
        text = line.text
        frame = _FRAME.match(text)
        if text.strip() == _HEADER:
            inside, frames = True, []
        elif text.strip() in (_DIRECT_CAUSE, _DURING):
            link = text.strip()
        elif frame is not None and (inside or frame["name"] is None):
            inside = True
            name = frame["name"] or ""
            frames.append(Frame(file=frame["file"], line=int(frame["line"]), name=name))
        elif inside and text[:1].strip() and _ends_traceback(text, frames):
            exception = _exception(line, lines[index + 1 :], frames)
            if link is not None and ends:
                exception.cause, exception.direct = ends.pop(), link == _DIRECT_CAUSE
            ends.append(exception)
            inside, frames, link = False, [], None
    return ends


def _ends_traceback(text: str, frames: Sequence[Frame]) -> bool:
    match = _RAISED.match(text)
    if match is None:
        return False
    if any(frame.name for frame in frames):
        return True
    return match["type"].rpartition(".")[2] in _SYNTAX or match["message"] is not None


def _exception(line: LogLine, following: Iterable[LogLine], frames: Sequence[Frame]) -> LoggedException:
    match = _RAISED.match(line.text)
    kind, message = (match["type"], match["message"] or "") if match else ("unknown", line.text)
    parts = [message]
    for after in following:
        text = after.text.rstrip()
        stop = not text or text.strip() in (_HEADER, _DIRECT_CAUSE, _DURING) or _GLOG.match(text)
        if stop or len(parts) >= _LONGEST_MESSAGE:
            break
        parts.append(text)
    return LoggedException(line.rank, kind, "\n".join(parts).strip(), tuple(frames), line)
