"""A disk that refuses: by a limit on file sizes, which the tests lower and raise from outside."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.slurm.agents import Agent
from tests.slurm.trial_folder import make_trial, no_process_left, records_of, wait_for

_SMALL = 64


@pytest.fixture
def start() -> Iterator[Any]:
    """A function that starts an agent and ends it after the test."""
    agents: list[Agent] = []

    def starter(*arguments: Any) -> Agent:
        agents.append(Agent(*arguments))
        return agents[-1]

    yield starter
    for agent in agents:
        agent.close()


def _allow(agent: Agent, size: int) -> None:
    resource.prlimit(agent.process.pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


def _train_to_the_end(agent: Agent, folder: Path) -> None:
    wait_for(
        lambda: (folder / "updates-0.jsonl").exists() and len(records_of(folder)) > 2, "training started"
    )
    _allow(agent, _SMALL)
    (folder / "output" / "release").touch()


def test_a_result_waits_for_room_on_the_disk(tmp_path: Path, start: Any) -> None:
    """What cannot be written at the end is written as soon as it can, and says what was lost meanwhile."""
    folder = tmp_path / "t"
    plan = make_trial(folder, "describe")
    agent = start(plan, {})
    _train_to_the_end(agent, folder)
    wait_for(lambda: no_process_left(plan), "the training ended")
    assert not (folder / "result.json").exists()
    _allow(agent, resource.RLIM_INFINITY)
    result = agent.result()
    assert (result["ended"], result["ranks"][0]["end"]) == ("exited", True)
    assert result["ranks"][0]["updates"] >= 5
    assert any("updates-0.jsonl cannot be written" in each for each in result["ranks"][0]["protocol_errors"])


def test_a_result_that_cannot_be_written_is_not_lost_silently(tmp_path: Path, start: Any) -> None:
    """When the disk stays full, the agent says so and exits with 5."""
    folder = tmp_path / "t"
    plan = make_trial(folder, "describe")
    agent = start(plan, {}, "result.WRITE_LIMIT_S = 1.0")
    _train_to_the_end(agent, folder)
    _allow(agent, _SMALL * 10)  # enough for its last words
    assert agent.wait() == 5
    assert "result.json: cannot be written: File too large" in agent.words()
    assert no_process_left(plan)
    assert not (folder / "result.json").exists()
    assert not list(folder.glob(".result.json.*"))
