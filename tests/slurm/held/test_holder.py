"""The holder as a process, with a stand-in for srun: what it does with its orders and its time."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from tests.slurm.held.holder_process import holder, trial
from tests.slurm.trial_folder import no_process_left, read_json, wait_for


def _training_started(folder: Path) -> bool:
    return (folder / "output" / "facts.json").exists()


def test_trials_run_one_after_another(tmp_path: Path) -> None:
    """Orders that wait already are done in their order, each with a result, clean devices, then idleness."""
    plans = [trial(tmp_path / name, "normal", name) for name in ("a1", "b2")]
    with holder(tmp_path / "held") as held:
        for plan in plans:
            held.order(plan)
        held.start(SLURM_JOB_ID="17", SLURM_JOB_NODELIST="n[1-2]")
        ends = [held.wait_for("ended", token=token) for token in ("a1", "b2")]
        held.wait_for("idle")
        assert held.kinds() == ["allocated", "started", "ended", "started", "ended", "idle"]
        assert [(end["rc"], end["result"], end["devices_clean"], end["cut"]) for end in ends] == [
            (0, True, True, None)
        ] * 2
        first, second = [read_json(Path(plan.trial_dir) / "result.json") for plan in plans]
        assert first["finished_at"] <= second["started_at"]
        allocated = held.wait_for("allocated")
        assert (allocated["job_id"], allocated["nodelist"]) == ("17", "n[1-2]")


def test_waiting_trial_is_withdrawn(tmp_path: Path) -> None:
    """A cancelled order that waits behind another is never started, also when it comes again."""
    running, waiting = trial(tmp_path / "a", "describe", "a1"), trial(tmp_path / "b", "normal", "b2")
    with holder(tmp_path / "held") as held:
        held.order(running)
        held.order(waiting)
        held.start()
        wait_for(lambda: _training_started(tmp_path / "a"), "training started")
        held.say("cancel", token="b2")
        held.wait_for("withdrawn", token="b2")
        held.order(waiting)
        (Path(running.trial_dir) / "cancel").touch()
        held.say("cancel", token="a1")
        assert held.wait_for("ended", token="a1")["cut"] == "cancelled"
        held.wait_for("idle")
        assert not (tmp_path / "b" / "job.json").exists()


def test_cancel_that_comes_with_its_order(tmp_path: Path) -> None:
    """An order that was cancelled before the allocation came is withdrawn, not started."""
    plan = trial(tmp_path / "a", "normal", "a1")
    with holder(tmp_path / "held") as held:
        held.order(plan)
        held.say("cancel", token="a1")
        held.start()
        held.wait_for("withdrawn", token="a1")
        held.wait_for("idle")
        assert "started" not in held.kinds()


def test_idle_holder_leaves(tmp_path: Path) -> None:
    """Without an order the allocation is given back after the idle time."""
    with holder(tmp_path / "held", idle_s=0.5) as held:
        held.start()
        assert held.wait_for("leaving")["reason"] == "idle"
        assert held.wait_for_end() == 0


def test_leave_comes_after_what_was_ordered_before(tmp_path: Path) -> None:
    """A holder that is told to leave does the trials first that it was given first."""
    plan = trial(tmp_path / "a", "normal", "a1")
    with holder(tmp_path / "held") as held:
        held.order(plan)
        held.say("leave", reason="released")
        held.start()
        assert held.wait_for_end() == 0
        assert held.kinds() == ["allocated", "started", "ended", "leaving"]
        assert held.wait_for("leaving")["reason"] == "released"


def test_trial_is_cut_off_before_the_end_of_the_allocation(tmp_path: Path) -> None:
    """At the end of the time the agent ends its trial, the reason is on record, and the holder leaves."""
    plan = trial(tmp_path / "a", "describe", "a1")
    with holder(tmp_path / "held", limit_s=6.0) as held:
        held.order(plan)
        held.start()
        end = held.wait_for("ended", token="a1")
        assert (end["cut"], end["result"], end["devices_clean"]) == ("time_limit", True, True)
        assert held.kinds().index("cut") < held.kinds().index("ended")
        assert held.wait_for_end() == 0
        assert held.wait_for("leaving")["reason"] == "time_limit"
        assert read_json(Path(plan.trial_dir) / "result.json")["ended"] == "total_timeout"


def test_trial_that_may_not_finish_is_declined(tmp_path: Path) -> None:
    """What does not fit into the time that is left is not started, and the allocation is given back."""
    first, second = trial(tmp_path / "a", "normal", "a1"), trial(tmp_path / "b", "normal", "b2")
    with holder(tmp_path / "held", limit_s=12.0) as held:
        held.order(first)
        held.start()
        held.wait_for("ended", token="a1")
        allocated = held.wait_for("allocated")
        wait_for(lambda: _left(allocated) < 0.9 * 12.0 - 0.1, "time has passed")
        held.order(second, time_limit_s=60.0)
        assert held.wait_for("declined", token="b2")["reason"]
        assert held.wait_for_end() == 0
        assert held.wait_for("leaving")["reason"] == "too_little_time"


def _left(allocated: dict[str, float]) -> float:
    return allocated["end_time"] - time.time()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_holder_that_is_told_to_end_ends_its_trial(tmp_path: Path, number: int) -> None:
    """Slurm takes the allocation away: nothing of the trial is left, and whose doing it was is on record."""
    plan = trial(tmp_path / "a", "describe", "a1")
    with holder(tmp_path / "held") as held:
        held.order(plan)
        held.start()
        wait_for(lambda: _training_started(tmp_path / "a"), "training started")
        assert held.process is not None
        held.process.send_signal(number)
        assert held.wait_for("ended", token="a1")["cut"] == "told_to_end"
        assert held.wait_for_end() == 0
        assert no_process_left(plan)


def test_step_is_started_again_while_the_controller_is_away(tmp_path: Path) -> None:
    """A step that could not start because nobody answered is not the trial's failure."""
    plan = trial(tmp_path / "a", "normal", "a1")
    with holder(tmp_path / "held") as held:
        held.mode_file.write_text("away away run")
        held.order(plan)
        held.start()
        end = held.wait_for("ended", token="a1")
        assert (end["starts"], end["rc"], end["result"]) == (3, 0, True)


def test_step_that_is_refused_is_given_up(tmp_path: Path) -> None:
    """A step that Slurm refuses is tried twice; then the trial never started, in srun's words."""
    plan = trial(tmp_path / "a", "normal", "a1")
    with holder(tmp_path / "held") as held:
        held.mode_file.write_text("refuse refuse run")
        held.order(plan)
        held.start()
        end = held.wait_for("ended", token="a1")
        assert (end["starts"], end["agent_started"], end["result"]) == (2, False, False)
        assert "Requested node configuration" in end["words"]


def test_trial_without_an_agent_is_not_started_twice(tmp_path: Path) -> None:
    """A step whose agent began and failed is over, whatever srun says about it."""
    plan = trial(tmp_path / "a", "normal", "a1")
    (Path(plan.trial_dir) / "job.json").write_text('{"token": "somebody"}')
    with holder(tmp_path / "held") as held:
        held.order(plan)
        held.start()
        end = held.wait_for("ended", token="a1")
        assert (end["starts"], end["rc"], end["result"]) == (1, 3, False)


@pytest.mark.slow
def test_step_does_not_outlive_its_result_for_long(tmp_path: Path) -> None:
    """An srun that waits for a node that is gone holds the next trial up for seconds, not for a minute."""
    plan, other = trial(tmp_path / "a", "normal", "a1"), trial(tmp_path / "b", "normal", "b2")
    with holder(tmp_path / "held") as held:
        held.mode_file.write_text("linger run")
        held.order(plan)
        held.order(other)
        held.start()
        end = held.wait_for("ended", 40.0, token="a1")
        assert (end["result"], end["cut"], end["devices_clean"]) == (True, None, True)
        assert held.wait_for("ended", 40.0, token="b2")["rc"] == 0


@pytest.mark.slow
def test_leftover_of_a_trial_gives_the_allocation_back(tmp_path: Path) -> None:
    """A process of the trial that its agent could not end makes the devices dirty: nothing is run on them."""
    plan, other = trial(tmp_path / "a", "normal", "a1"), trial(tmp_path / "b", "normal", "b2")
    with holder(tmp_path / "held") as held:
        held.mode_file.write_text("litter run")
        held.order(plan)
        held.order(other)
        held.start()
        end = held.wait_for("ended", 40.0, token="a1")
        survivor = int((tmp_path / "a" / "left").read_text())
        try:
            assert not end["devices_clean"]
            assert str(survivor) in end["left"][0]
            assert held.wait_for_end() == 0
            assert held.wait_for("leaving")["reason"] == "dirty_devices"
            assert not (tmp_path / "b" / "job.json").exists()
        finally:
            os.kill(survivor, signal.SIGKILL)


def test_restarted_holder_leaves_at_once(tmp_path: Path) -> None:
    """A requeued job runs nothing: the trial it was in is not one clean measurement any more."""
    plan = trial(tmp_path / "a", "describe", "a1")
    with holder(tmp_path / "held") as held:
        held.order(plan)
        held.start()
        wait_for(lambda: _training_started(tmp_path / "a"), "training started")
        assert held.process is not None
        held.process.kill()
        held.process.wait()
        held.start(SLURM_RESTART_COUNT="1")
        assert held.wait_for_end() == 0
        assert held.wait_for("leaving")["reason"] == "restarted"
        assert held.kinds().count("allocated") == 1
        (Path(plan.trial_dir) / "cancel").touch()
        wait_for(lambda: no_process_left(plan), "the orphaned trial is gone")


def test_several_nodes_are_asked_for_leftovers_by_a_step(tmp_path: Path) -> None:
    """With more than one node the question goes to all of them, as a step of its own."""
    plan = trial(tmp_path / "a", "normal", "a1")
    with holder(tmp_path / "held", nodes=2) as held:
        held.order(plan)
        held.start()
        assert held.wait_for("ended", token="a1")["devices_clean"]
        assert (held.folder / "checks" / "a1" / "agent.log").read_text() == ""


def test_heartbeat_beats(tmp_path: Path) -> None:
    """A holder that lives changes its heartbeat and names the trial that it runs."""
    with holder(tmp_path / "held") as held:
        held.start()
        path = held.folder / "heartbeat"
        wait_for(path.exists, "the first beat")
        first = path.read_bytes()
        wait_for(lambda: path.read_bytes() != first, "another beat")
        assert read_json(path)["trial"] is None


def test_unusable_plan_is_said_in_a_line(tmp_path: Path) -> None:
    """A holder without its plan says so and gives the allocation back, without a traceback."""
    with holder(tmp_path / "held") as held:
        (held.folder / "holder.json").write_text('{"version": 2}')
        held.start()
        assert held.wait_for_end() == 2
        said = (held.folder / "holder.log").read_text()
        assert "holder.json" in said
        assert "Traceback" not in said
