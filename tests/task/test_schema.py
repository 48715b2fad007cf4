from __future__ import annotations

import json
import tomllib

import jsonschema  # type: ignore[import-untyped]
import pytest

from engine.task.json_schema import SCHEMA_FILE, schema_text
from tests.task.project import TASK


def test_schema_is_current() -> None:
    """The committed schema is what `python -m engine.task.json_schema` prints."""
    assert SCHEMA_FILE.read_text(encoding="utf-8") == schema_text()


def test_schema_accepts_a_task_and_refuses_a_wrong_one() -> None:
    """An editor that uses the schema agrees with the loader."""
    schema = json.loads(SCHEMA_FILE.read_text(encoding="utf-8"))
    validator = jsonschema.Draft202012Validator(schema)
    validator.check_schema(schema)
    validator.validate(tomllib.loads(TASK))
    with pytest.raises(jsonschema.ValidationError, match="gpu_per_node"):
        validator.validate(tomllib.loads(TASK.replace("gpus_per_node", "gpu_per_node")))
