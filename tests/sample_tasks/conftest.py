"""Fixtures of the sample tasks' tests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.sample_tasks.projects import tiny_copy


@pytest.fixture
def project(tmp_path: Path) -> Callable[[str], Path]:
    """Makes a copy of the named sample with tiny sizes."""
    return lambda name: tiny_copy(name, tmp_path / name)
