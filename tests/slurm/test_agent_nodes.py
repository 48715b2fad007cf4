"""Several agents of one trial, as processes on this machine that believe to be nodes."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from engine.schema.plan import LaunchPlan
from tests.slurm.agents import Agent, step_environment
from tests.slurm.trial_folder import (
    PAYLOADS,
    make_trial,
    make_wide_trial,
    no_process_left,
    read_json,
    records_of,
    wait_for,
)


@pytest.fixture
def start() -> Iterator[Any]:
    """A function that starts the agent of one node and ends it after the test."""
    agents: list[Agent] = []

    def starter(plan: LaunchPlan, node: int, *, nodes: int = 2, patch: str = "", **environ: str) -> Agent:
        agents.append(Agent(plan, step_environment(node, nodes, **environ), patch))
        return agents[-1]

    yield starter
    for agent in reversed(agents):
        agent.close()


def _updates_arrive(folder: Path, rank: int) -> bool:
    return (folder / f"updates-{rank}.jsonl").exists() and len(records_of(folder, rank)) > 2


def _beat(folder: Path) -> dict[str, Any]:
    path = folder / "heartbeat"
    beat: dict[str, Any] = read_json(path) if path.exists() else {"at": 0.0, "updates": {}}
    return beat


@pytest.mark.parametrize("nodes", [2, 3])
def test_all_ranks_are_in_one_result(tmp_path: Path, start: Any, nodes: int) -> None:
    """Each node writes its own files; the head's result holds every rank and every node."""
    folder = tmp_path / "t"
    plan = make_wide_trial(folder, "normal", nodes=nodes)
    agents = [start(plan, node, nodes=nodes) for node in range(nodes)]
    result = agents[0].result()
    assert [agent.wait() for agent in agents] == [0] * nodes
    assert (result["ended"], result["exit_code"], result["launch_error"]) == ("exited", 0, None)
    assert result["slurm"] == {"job_id": "4711", "step_id": "3", "restarts": 0}
    assert [rank["rank"] for rank in result["ranks"]] == list(range(2 * nodes))
    for rank in result["ranks"]:
        number = rank["rank"]
        assert (rank["node"], rank["updates"], rank["end"]) == (number // 2, 5, True)
        assert (rank["protocol_errors"], rank["window"]["updates"]) == ([], [2, 4])
        assert read_json(folder / f"exit-{number}.json")["updates"] == 5
        assert [record["k"] for record in records_of(folder, number)] == ["hello", *["update"] * 5, "end"]
    for number, node in enumerate(result["nodes"]):
        assert (node["node_rank"], node["name"]) == (number, f"fake{number}.invalid")
        assert (node["reported"], node["exit_code"]) == (True, 0)
        assert node["cpus"] >= 1
        assert 0 < node["longest_gap_s"] < 5
    for number in range(1, nodes):
        mark = read_json(folder / f"node-{number}.json")
        assert (mark["node_rank"], mark["pid"]) == (number, agents[number].process.pid)
        assert "trains" in (folder / f"launcher-{number}.log").read_text()
        assert read_json(folder / f"heartbeat-{number}")["updates"].keys() == {
            str(2 * number),
            str(2 * number + 1),
        }


def test_no_rank_goes_before_all_have_ended(tmp_path: Path, start: Any) -> None:
    """A rank that is done is let go only when the last rank of the last node is done."""
    plan = make_wide_trial(tmp_path / "t", "uneven")
    agents = [start(plan, node) for node in range(2)]
    agents[0].result()
    times = [read_json(tmp_path / "t" / "output" / f"times-{rank}") for rank in range(4)]
    assert [each["answer"] for each in times] == ["stop"] * 4
    assert min(each["let_go"] for each in times) > max(each["done"] for each in times)


def test_e19_a_crash_on_another_node_ends_all(tmp_path: Path, start: Any) -> None:
    """A dead rank on node 1 ends node 0 within seconds, and its exception is in the result."""
    plan = make_wide_trial(tmp_path / "t", "crash")
    agents = [start(plan, node) for node in range(2)]
    result = agents[0].result()
    assert (result["ended"], agents[1].wait()) == ("exited", 0)
    assert result["wall_s"] < 15
    assert [rank["exception"] and rank["exception"]["message"] for rank in result["ranks"]] == [
        None,
        None,
        None,
        "boom",
    ]
    assert [node["reported"] for node in result["nodes"]] == [True, True]


def test_a_launcher_that_fails_on_another_node_ends_all(tmp_path: Path, start: Any) -> None:
    """The result carries how the first launcher failed, not how the others were ended."""
    plan = make_wide_trial(tmp_path / "t", "fail")
    agents = [start(plan, node) for node in range(2)]
    result = agents[0].result()
    assert (result["ended"], result["signal"]) == ("exited", signal.SIGKILL)
    assert result["wall_s"] < 15


def test_a_killed_agent_is_a_lost_node(tmp_path: Path, start: Any) -> None:
    """SIGKILL to node 1's agent: the head says so, keeps what it last heard, and nothing is left."""
    folder = tmp_path / "t"
    plan = make_wide_trial(folder, "describe")
    head, other = (start(plan, node) for node in range(2))
    wait_for(lambda: _beat(folder)["updates"].get("3", 0) > 0, "the head hears of rank 3")
    other.process.kill()
    assert head.wait() == 0
    result = read_json(folder / "result.json")
    wait_for(lambda: no_process_left(plan), "all processes ended")
    assert (result["ended"], result["nodes"][1]["reported"]) == ("node_lost", False)
    assert result["nodes"][1]["name"] == "fake1.invalid"
    assert "closed the connection" in result["nodes"][1]["problem"]
    assert [rank["node"] for rank in result["ranks"]] == [0, 0, 1, 1]
    assert (result["ranks"][3]["hello"], result["ranks"][3]["end"]) == (True, False)
    assert result["ranks"][3]["updates"] > 0


@pytest.mark.slow
def test_a_silent_agent_is_a_lost_node(tmp_path: Path, start: Any) -> None:
    """An agent that says nothing for 15 s is lost; when it wakes up, it ends its part and leaves."""
    folder = tmp_path / "t"
    plan = make_wide_trial(folder, "describe")
    head, other = (start(plan, node) for node in range(2))
    wait_for(lambda: _updates_arrive(folder, 3), "training started")
    other.process.send_signal(signal.SIGSTOP)
    stopped = time.monotonic()
    assert head.wait(60) == 0
    assert 14 < time.monotonic() - stopped < 40
    result = read_json(folder / "result.json")
    assert (result["ended"], result["nodes"][1]["reported"]) == ("node_lost", False)
    assert "said nothing" in result["nodes"][1]["problem"]
    other.process.send_signal(signal.SIGCONT)
    assert other.wait() == 4
    assert no_process_left(plan)


def test_agents_without_a_head_end_their_part(tmp_path: Path, start: Any) -> None:
    """SIGKILL to the head: no result, the others end what they run and exit with 4."""
    folder = tmp_path / "t"
    plan = make_wide_trial(folder, "describe", nodes=3)
    head, *others = (start(plan, node, nodes=3) for node in range(3))
    for rank in range(6):
        wait_for(lambda rank=rank: _updates_arrive(folder, rank), "training started")
    head.process.kill()
    assert [other.wait() for other in others] == [4, 4]
    assert "head of the trial is gone" in others[0].words()
    wait_for(lambda: no_process_left(plan), "all processes ended")
    assert not (folder / "result.json").exists()


@pytest.mark.parametrize("how", ["file", "signal to the head", "signal to the other"])
def test_cancel_reaches_every_node(tmp_path: Path, start: Any, how: str) -> None:
    """The file `cancel`, and a signal to any of the agents, end the trial everywhere, in order."""
    folder = tmp_path / "t"
    plan = make_wide_trial(folder, "describe")
    agents = [start(plan, node) for node in range(2)]
    wait_for(lambda: _updates_arrive(folder, 3), "training started")
    if how == "file":
        (folder / "cancel").touch()
    else:
        agents[how == "signal to the other"].process.terminate()
    result = agents[0].result()
    assert (result["ended"], agents[1].wait()) == ("cancelled", 0)
    assert [node["reported"] for node in result["nodes"]] == [True, True]


def test_a_late_node_is_waited_for(tmp_path: Path, start: Any) -> None:
    """Nothing is started before all nodes are there."""
    folder = tmp_path / "t"
    plan = make_wide_trial(folder, "normal")
    head = start(plan, 0)
    first = wait_for(lambda: _beat(folder)["at"], "the head waits")
    wait_for(lambda: _beat(folder)["at"] > first + 0.9, "it still waits")
    assert not (folder / "launcher.log").exists()
    other = start(plan, 1)
    result = head.result()
    assert (result["ended"], other.wait()) == ("exited", 0)


def test_a_node_that_never_comes_is_named(tmp_path: Path, start: Any) -> None:
    """Without an agent on node 1 nothing is started; the node's name is known from the scheduler."""
    folder = tmp_path / "t"
    result = start(make_wide_trial(folder, "normal"), 0, patch="lead.GATHER_S = 1.0").result()
    assert (result["ended"], result["exit_code"]) == ("node_lost", None)
    assert (result["nodes"][1]["reported"], result["nodes"][1]["name"]) == (False, "fake1.invalid")
    assert "did not appear" in result["nodes"][1]["problem"]
    assert not (folder / "launcher.log").exists()


def test_no_head_no_start(tmp_path: Path, start: Any) -> None:
    """An agent that finds no head exits with 4 and says where it looked."""
    other = start(make_wide_trial(tmp_path / "t", "normal"), 1, patch="follow.FIND_HEAD_S = 1.0")
    assert other.wait() == 4
    assert "did not answer within 1 s at 127.0.0.1" in other.words()
    assert "Traceback" not in other.words()
    assert not (tmp_path / "t" / "launcher-1.log").exists()


def test_second_start_of_a_node_is_refused(tmp_path: Path, start: Any) -> None:
    """A requeued job finds the folder used on every node."""
    plan = make_wide_trial(tmp_path / "t", "normal")
    first = [start(plan, node) for node in range(2)]
    result = first[0].result()
    assert first[1].wait() == 0
    assert [start(plan, node, SLURM_RESTART_COUNT="1").wait() for node in range(2)] == [3, 3]
    assert read_json(tmp_path / "t" / "result.json") == result


def test_e21_a_taken_port_is_replaced(tmp_path: Path, start: Any) -> None:
    """Ranks that find their port in use are started again with another, on every node, in the same trial."""
    folder = tmp_path / "t"
    variables = "RANK={node_rank} LOCAL_RANK=0 WORLD_SIZE=2 MASTER_PORT={master_port}"
    line = f"export {variables}; exec {sys.executable} {PAYLOADS / 'trainer.py'} meet {folder / 'output'}"
    plan = make_trial(folder, "meet", nodes=2, command=["sh", "-c", line])
    agents = [start(plan, node) for node in range(2)]
    result = agents[0].result()
    assert agents[1].wait() == 0
    assert (result["ended"], result["exit_code"]) == ("exited", 0)
    assert [rank["updates"] for rank in result["ranks"]] == [5, 5]
    first, second = (folder / "output" / "ports").read_text().split()
    assert first != second
    assert result["nodes"][0]["problem"] == (
        f"port {first} was taken by somebody else: started again with another"
    )


def test_e23_a_step_of_another_size_is_refused(tmp_path: Path, start: Any) -> None:
    """Fewer ranks than planned would train without an error: the number of nodes is checked first."""
    folder = tmp_path / "t"
    plan = make_trial(folder, "normal", ranks=2)
    agents = [start(plan, node) for node in range(2)]
    result = agents[0].result()
    assert (result["ended"], agents[1].wait()) == ("preflight_failed", 0)
    assert "nodes: the plan has 1, the agent was started on 2" in result["launch_error"]
    assert len(result["ranks"]) == 2
    assert not (folder / "launcher.log").exists()


def test_one_agent_a_node(tmp_path: Path, start: Any) -> None:
    """A step with several tasks on a node is refused by its first task; the others keep out of it."""
    plan = make_trial(tmp_path / "t", "normal", ranks=2)
    first = start(plan, 0, nodes=1, SLURM_STEP_NUM_TASKS="2")
    second = start(plan, 0, nodes=1, SLURM_STEP_NUM_TASKS="2", SLURM_LOCALID="1")
    assert second.wait() == 0
    result = first.result()
    assert result["ended"] == "preflight_failed"
    assert "--ntasks-per-node=1" in result["launch_error"]


def test_a_launch_that_fails_on_another_node_is_a_result(tmp_path: Path, start: Any) -> None:
    """What node 1 cannot start ends node 0 as well, with the cause."""
    folder = tmp_path / "t"
    command = [str(folder / "work" / "run-{node_rank}"), "600"]
    plan = make_wide_trial(folder, "silent", command=command)
    (folder / "work" / "run-0").symlink_to("/bin/sleep")
    agents = [start(plan, node) for node in range(2)]
    result = agents[0].result()
    assert (result["ended"], agents[1].wait()) == ("launch_failed", 0)
    assert "node 1: cannot start" in result["launch_error"]
    assert "run-1" in result["launch_error"]


def test_a_paused_agent_shows_in_its_gap(tmp_path: Path, start: Any) -> None:
    """The time for which an agent could not run is in the result, for each node by itself."""
    folder = tmp_path / "t"
    plan = make_wide_trial(folder, "describe")
    agents = [start(plan, node) for node in range(2)]
    wait_for(lambda: _updates_arrive(folder, 3), "training started")
    agents[1].process.send_signal(signal.SIGSTOP)
    time.sleep(2.0)
    agents[1].process.send_signal(signal.SIGCONT)
    (folder / "output" / "release").touch()
    result = agents[0].result()
    assert (result["ended"], result["exit_code"], agents[1].wait()) == ("exited", 0, 0)
    assert result["nodes"][1]["longest_gap_s"] > 1.9
    assert result["nodes"][0]["longest_gap_s"] < 1.9


def test_ranks_of_all_nodes_share_the_heads_clock(tmp_path: Path, start: Any) -> None:
    """Times of ranks on other nodes are moved to the head's clock, which here is the same one."""
    plan = make_wide_trial(tmp_path / "t", "normal")
    agents = [start(plan, node) for node in range(2)]
    before_ns = time.monotonic_ns()
    result = agents[0].result()
    assert 0 <= result["nodes"][1]["clock_offset_ns"] < 1e9
    for rank in result["ranks"]:
        assert before_ns < rank["first_update_ns"] < rank["last_update_ns"] < time.monotonic_ns() + 1e9
    assert agents[1].wait() == 0
