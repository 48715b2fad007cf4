"""Exceptions are recorded where they first leave, once, even without memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

Watch = Callable[..., Any]


@pytest.mark.parametrize("limit", ["soft", "hard"])
def test_out_of_memory_is_recorded(watch: Watch, limit: str) -> None:
    """With memory exhausted the record is still built; the soft limit is noted, raised, and put back."""
    run = watch("exhaust_memory.py", limit)
    assert run.returncode != 0
    (record,) = run.of_kind("exception")
    assert record["phase"] == "forward"
    assert "can't allocate memory" in record["message"]
    assert record["update"] == 1
    stood, now = (int(word) for word in run.output.split()[1::2])
    assert record["rlimit_data"] == stood == now
    assert record["rlimit_data_raised"] == (limit == "soft")
    assert record["memory"]["vm_data"] > stood - (4 << 20)
    assert run.of_kind("end") == []


@pytest.mark.parametrize(
    ("where", "phase", "kind"),
    [
        ("swallowed", "forward", "ValueError"),
        ("step", "step", "ArithmeticError"),
        ("uncaught", "uncaught", "KeyError"),
        ("hook_replaced", "uncaught", "KeyError"),
    ],
)
def test_exception_is_recorded_once_with_its_place(watch: Watch, where: str, phase: str, kind: str) -> None:
    """Phase, class, bases and innermost frames are reported; an uncaught one leaves no end record."""
    run = watch("raise_errors.py", where, total_updates=9)
    (record,) = run.of_kind("exception")
    assert (record["phase"], record["type"]) == (phase, kind)
    assert record["mro"][0] == kind
    assert record["mro"][-1] == "object"
    assert record["frames"][-1]["file"].endswith("raise_errors.py")
    assert bool(run.of_kind("end")) == (where == "swallowed")
    assert run.probe_errors == []


def test_swallowed_failure_in_a_step_does_not_hide_later_steps(watch: Watch) -> None:
    """A step that raised and was caught is no update; the steps after it are seen."""
    run = watch("raise_errors.py", "swallowed_step", total_updates=9)
    assert [u["i"] for u in run.updates] == [0, 1]
    assert run.updates[1]["n"]["backward"] == 2
    assert run.of_kind("end")[0]["updates"] == 2
