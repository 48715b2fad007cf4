"""The payload is one folder that runs on old interpreters with nothing but the standard library and torch."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

from engine.probe.payload_files import copy_payload, payload_dir

FILES = sorted(payload_dir().rglob("*.py"))


def test_copy_is_complete_and_its_hash_is_stable(tmp_path: Path) -> None:
    """Two copies hold the same files and have the same hash; an existing folder is never written into."""
    first = copy_payload(tmp_path / "a")
    assert copy_payload(tmp_path / "deeper" / "b") == first
    copied = {str(p.relative_to(tmp_path / "a")) for p in (tmp_path / "a").rglob("*") if p.is_file()}
    assert copied == {str(p.relative_to(payload_dir())) for p in FILES}
    assert "sitecustomize.py" in copied
    with pytest.raises(FileExistsError):
        copy_payload(tmp_path / "a")


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.name)
def test_payload_is_self_contained_and_small(path: Path) -> None:
    """Python 3.9 syntax, imports of the standard library, torch and itself only, short functions."""
    source = path.read_text()
    tree = ast.parse(source, feature_version=(3, 9))
    allowed = sys.stdlib_module_names | {"torch", "_infrarsi_probe"}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            assert {alias.name.split(".")[0] for alias in node.names} <= allowed
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0
            assert (node.module or "").split(".")[0] in allowed
        if isinstance(node, ast.FunctionDef):
            assert (node.end_lineno or 0) - node.lineno < 60
    assert len(source.splitlines()) <= 300
