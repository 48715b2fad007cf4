"""The probe neither adds nor breaks graphs, and still sees compiled training."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Watch = Callable[..., Any]
SCRIPT = Path(__file__).parent / "scripts" / "train_tiny.py"

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("kind", ["module", "blocks", "function", "step"])
def test_graphs_are_those_of_the_bare_script(watch: Watch, kind: str) -> None:
    """Same graphs, breaks and captured calls with and without the probe; same samples and losses."""
    flags = ("--compile", kind, "--loss", "outside")
    run, plain = watch("train_tiny.py", *flags, stop=False), watch("train_tiny.py")
    bare = subprocess.run([sys.executable, SCRIPT, *flags], capture_output=True, text=True, check=True)
    assert "graphs" in bare.stdout
    assert run.output == bare.stdout
    assert run.probe_errors == []
    assert [u["data_hash"] for u in run.updates[:3]] == [u["data_hash"] for u in plain.updates]
    assert sum(run.updates[2]["loss"]) == pytest.approx(sum(plain.updates[2]["loss"]), rel=1e-5)
    assert run.updates[0]["compiles"] > 0
    assert [u["n"]["forward"] for u in run.updates] == [1] * 6
    start, reference = run.signature("start"), plain.signature("start")
    assert [p["name"] for p in start["params"]] == [p["name"] for p in reference["params"]]
    assert [p["hash"] for p in start["params"]] == [p["hash"] for p in reference["params"]]
