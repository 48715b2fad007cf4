"""Requests to a running engine: small files, written with tmp + rename, taken once."""

from __future__ import annotations

import json
import time
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, cast

from engine.durable import write_json

RequestKind = Literal["stop"]
_KINDS: tuple[RequestKind, ...] = ("stop",)


@dataclass(frozen=True)
class Request:
    """What a person asks of the engine."""

    kind: RequestKind
    reason: str


def post_request(requests: Path, kind: RequestKind, reason: str) -> None:
    """Leave a request for the engine."""
    write_json(requests / f"{time.time_ns()}-{uuid.uuid4().hex}.json", {"kind": kind, "reason": reason})


def take_requests(requests: Path) -> list[Request]:
    """Take all waiting requests, oldest first; files that are no request are removed unread."""
    taken = []
    for path in sorted(requests.glob("*.json")):
        try:
            content = json.loads(path.read_text())
        except (OSError, ValueError):
            content = {}
        path.unlink(missing_ok=True)
        if isinstance(content, dict) and content.get("kind") in _KINDS:
            taken.append(Request(cast(RequestKind, content["kind"]), str(content.get("reason", ""))))
    return taken
