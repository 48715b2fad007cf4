"""Patched clocks and removed hooks show in the records."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Watch = Callable[..., Any]


def test_patched_clock_is_reported_and_without_effect(watch: Watch) -> None:
    """Times come from the functions that were bound at start; the patch shows from the next update on."""
    run = watch("train_tiny.py", "--attack", "clock")
    assert [u["clocks_ok"] for u in run.updates] == [True, False, False]
    assert all(u["wall_ns"] > 0 for u in run.updates)
    assert run.updates[2]["end_ns"] > run.updates[1]["end_ns"]
    assert run.of_kind("end")[0]["clocks_ok"] is False


def test_removed_hook_is_reported(watch: Watch) -> None:
    """Putting torch's own module call back leaves hooks_ok false and the forward invisible."""
    run = watch("train_tiny.py", "--attack", "hooks", "--loader", "0")
    last = run.updates[2]
    assert last["hooks_ok"] is False
    assert last["hooks_changed"] == ["module_call"]
    assert last["n"]["forward"] == 0
    assert last["phase_ns"]["forward"] is None
    assert run.of_kind("end")[0]["hooks_ok"] is False
