"""Loops that do not call one module with the tokens and one step on the optimizer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

Watch = Callable[..., Any]
TOKENS = 4 * 16


def data_hashes(run: Any) -> list[str]:
    return [u["data_hash"] for u in run.updates]


@pytest.mark.parametrize("kind", ["stages", pytest.param("helper", marks=pytest.mark.slow)])
def test_work_is_counted_once(watch: Watch, kind: str) -> None:
    """A loss module, stages called one by one and compiled helpers neither repeat tokens nor make updates."""
    plain, run = watch("other_loops.py", "plain"), watch("other_loops.py", kind)
    assert run.probe_errors == plain.probe_errors == []
    assert data_hashes(run) == data_hashes(plain)
    for update in run.updates + plain.updates:
        assert (update["tokens"], update["label_tokens"]) == (TOKENS, TOKENS)
        counts = update["n"]
        assert (counts["forward"], counts["backward"], counts["optimizer"]) == (1, 1, 1)
    assert len(run.signature("end")["params"]) == len(plain.signature("end")["params"]) == 4


def test_keyword_arguments_are_told_apart(watch: Watch) -> None:
    """Ids, labels, mask and positions are recognised by name; padding is left out of the real tokens."""
    run = watch("other_loops.py", "keywords")
    plain = watch("other_loops.py", "plain")
    first = run.updates[0]
    assert (first["tokens"], first["real_tokens"], first["label_tokens"]) == (TOKENS, 4 * 14, 4 * 15)
    assert first["label_hash_source"] == "labels"
    assert first["data_hash"] != plain.updates[0]["data_hash"]
    assert first["label_hash"] is not None


@pytest.mark.slow
def test_whole_step_in_one_compiled_function(watch: Watch) -> None:
    """Only the split is invisible (null): updates, samples, changed weights and learning rate are seen."""
    run, plain = watch("other_loops.py", "whole_step"), watch("other_loops.py", "plain")
    assert run.probe_errors == []
    assert data_hashes(run) == data_hashes(plain)
    for update in run.updates:
        assert update["phase_ns"]["backward"] is update["phase_ns"]["optimizer"] is None
        assert update["loss"] == []
        assert update["steps"][0]["changed"] > 0
        assert update["hyper"][0][0]["lr"] == 0.01
    start, reference = run.signature("start"), plain.signature("start")
    assert [p["hash"] for p in start["params"]] == [p["hash"] for p in reference["params"]]
