"""The JSON Schema of infrarsi.toml, generated from the records: `python -m engine.task.json_schema`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from engine.schema.task import TaskFile

SCHEMA_FILE = Path(__file__).with_name("infrarsi.schema.json")


def json_schema() -> dict[str, Any]:
    """The schema (draft 2020-12), for editors and other tools."""
    schema = TaskFile.model_json_schema()
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **schema,
        "title": "infrarsi.toml",
    }


def schema_text() -> str:
    """The schema as it is committed."""
    return json.dumps(json_schema(), indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    sys.stdout.write(schema_text())
