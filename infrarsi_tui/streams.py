"""stdout is data, stderr is narration; this module owns both."""

from __future__ import annotations

import json
import sys
from typing import Any

from engine.errors import InfraError


def emit_json(value: Any) -> None:
    """Write the command's single JSON object."""
    sys.stdout.write(json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n")
    sys.stdout.flush()


def emit_text(text: str) -> None:
    """Write a result for people."""
    sys.stdout.write(text.rstrip("\n") + "\n")
    sys.stdout.flush()


def narrate(line: str) -> None:
    """Say what is going on."""
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


def error_value(error: InfraError) -> dict[str, Any]:
    """The JSON form of an error."""
    return {
        "error": {
            "kind": error.kind,
            "message": str(error) if error.rule or error.value is not None else error.message,
            "file": error.file,
            "key": error.key,
            "hint": error.hint,
        }
    }


def narrate_error(error: InfraError) -> None:
    """The same error for people: what, where, the rule, the next step."""
    narrate(f"error: {error.message}")
    for label, value in (
        ("file", error.file),
        ("key", error.key),
        ("value", error.value),
        ("rule", error.rule),
        ("next", error.hint),
    ):
        if value is not None:
            narrate(f"  {label:<6}{value}")
