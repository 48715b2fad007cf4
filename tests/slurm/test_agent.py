"""The agent as a process of its own, with payloads that speak the probe's protocol."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from engine.schema.plan import LaunchPlan
from slurm.agent.procfs import descendants, read_stat
from tests.slurm.agents import Agent
from tests.slurm.payloads.speaker import Speaker
from tests.slurm.trial_folder import (
    PAYLOADS,
    TOKEN,
    make_trial,
    no_process_left,
    read_json,
    records_of,
    wait_for,
)


@pytest.fixture
def start() -> Iterator[Any]:
    """A function that starts agents and ends them after the test."""
    agents: list[Agent] = []

    def starter(plan: LaunchPlan, **environ: str) -> Agent:
        agents.append(Agent(plan, environ))
        return agents[-1]

    yield starter
    for agent in agents:
        agent.close()


def test_normal_run_is_complete(tmp_path: Path, start: Any) -> None:
    """Every file of a run that went well holds what was said, who said it and when it arrived."""
    before = time.monotonic_ns()
    agent = start(make_trial(tmp_path / "t", "normal", ranks=2))
    result = agent.result()
    assert (result["ended"], result["exit_code"], result["signal"]) == ("exited", 0, None)
    assert (result["version"], result["trial_id"], result["token"]) == (1, "t", TOKEN)
    assert result["launch_error"] is None
    assert 0 < result["wall_s"] == pytest.approx(result["finished_at"] - result["started_at"])
    job = read_json(tmp_path / "t" / "job.json")
    assert (job["pid"], job["token"], job["version"]) == (agent.process.pid, TOKEN, 1)
    assert [rank["rank"] for rank in result["ranks"]] == [0, 1]
    for rank in result["ranks"]:
        _check_complete_rank(tmp_path / "t", rank, before)
    assert "rank 1 trains" in (tmp_path / "t" / "launcher.log").read_text()
    assert read_json(tmp_path / "t" / "heartbeat")["updates"].keys() == {"0", "1"}


def _check_complete_rank(folder: Path, rank: dict[str, Any], before_ns: int) -> None:
    assert (rank["hello"], rank["updates"], rank["end"], rank["exception"]) == (True, 5, True, None)
    assert rank["protocol_errors"] == []
    exit_record = read_json(folder / f"exit-{rank['rank']}.json")
    assert exit_record["pid"] == exit_record["peer_pid"] == rank["pid"]
    records = records_of(folder, rank["rank"])
    assert [record["k"] for record in records] == ["hello", *["update"] * 5, "end"]
    arrivals = [record["arrived_ns"] for record in records]
    assert arrivals == sorted(arrivals)
    assert before_ns < arrivals[0]
    updates = arrivals[1:6]
    assert (rank["first_update_ns"], rank["last_update_ns"]) == (updates[0], updates[-1])
    assert rank["window"]["updates"] == [2, 4]
    assert rank["window"]["elapsed_ns"] == updates[4] - updates[1]
    assert rank["cpu_s"] >= rank["window"]["cpu_s"] >= 0.03
    assert rank["peak_vm_hwm_bytes"] > 1 << 20
    assert rank["peak_vm_data_bytes"] > 1 << 20


def test_crash_of_one_rank_ends_the_others(tmp_path: Path, start: Any) -> None:
    """A dead rank takes the trial down within the grace time, and its exception is reported."""
    agent = start(make_trial(tmp_path / "t", "crash", ranks=2))
    result = agent.result()
    assert result["ended"] == "exited"
    assert result["exit_code"] != 0
    assert result["wall_s"] < 12
    alive, dead = result["ranks"]
    assert (dead["end"], dead["exception"]["message"], dead["updates"]) == (False, "boom", 1)
    assert (alive["end"], alive["exception"], alive["updates"]) == (False, None, 1)


def test_lone_rank_reports_its_exit_code(tmp_path: Path, start: Any) -> None:
    """With a single process the rank's exit code is the launcher's."""
    result = start(make_trial(tmp_path / "t", "crash")).result()
    assert (result["ended"], result["exit_code"], result["ranks"][0]["exit_code"]) == ("exited", 3, 3)


def test_hung_rank_meets_the_update_timeout(tmp_path: Path, start: Any) -> None:
    """A rank without updates ends the trial although the others go on and it ignores SIGTERM."""
    result = start(make_trial(tmp_path / "t", "hang", ranks=2, update_timeout_s=1.0)).result()
    assert result["ended"] == "update_timeout"
    assert result["ranks"][1]["updates"] > result["ranks"][0]["updates"] == 1


def test_silent_rank_meets_the_start_timeout(tmp_path: Path, start: Any) -> None:
    """A rank that says hello and never trains is ended by the start timeout."""
    result = start(make_trial(tmp_path / "t", "silent", start_timeout_s=1.0)).result()
    assert (result["ended"], result["signal"]) == ("start_timeout", signal.SIGTERM)
    assert (result["ranks"][0]["hello"], result["ranks"][0]["updates"]) == (True, 0)
    assert result["ranks"][0]["window"] is None


def test_script_without_probe_meets_the_start_timeout(tmp_path: Path, start: Any) -> None:
    """A process that never connects is ended too, and its rank is reported as absent."""
    plan = make_trial(tmp_path / "t", "-", command=["sleep", "600"], start_timeout_s=0.5)
    result = start(plan).result()
    assert result["ended"] == "start_timeout"
    assert (result["ranks"][0]["hello"], result["ranks"][0]["pid"]) == (False, None)
    assert read_json(tmp_path / "t" / "exit-0.json")["hello"] is False


def test_total_timeout_ends_a_healthy_run(tmp_path: Path, start: Any) -> None:
    """Progress does not protect from the total timeout."""
    result = start(make_trial(tmp_path / "t", "describe", total_timeout_s=1.5)).result()
    assert result["ended"] == "total_timeout"
    assert result["ranks"][0]["updates"] > 0


@pytest.mark.parametrize(
    ("number", "ended"), [(signal.SIGUSR2, "total_timeout"), (signal.SIGTERM, "cancelled")]
)
def test_signal_of_a_scheduler_reaches_everybody(
    tmp_path: Path, start: Any, number: signal.Signals, ended: str
) -> None:
    """Slurm signals the ranks and their launcher too, in any order: the agent knows why they are gone."""
    agent = start(make_trial(tmp_path / "t", "describe", ranks=2))
    wait_for((tmp_path / "t" / "output" / "facts.json").exists, "training started")
    for process in (*descendants(agent.process.pid), agent.process):
        os.kill(process.pid, number)
    assert agent.result()["ended"] == ended


def test_signal_that_comes_when_the_launcher_has_gone(tmp_path: Path, start: Any) -> None:
    """On a busy node the agent may hear last: what ended without a reason of its own was told to end."""
    agent = start(make_trial(tmp_path / "t", "describe", ranks=2))
    wait_for((tmp_path / "t" / "output" / "facts.json").exists, "training started")
    for process in descendants(agent.process.pid):
        os.kill(process.pid, signal.SIGTERM)
    wait_for(lambda: not descendants(agent.process.pid), "launcher and ranks are gone")
    os.kill(agent.process.pid, signal.SIGTERM)
    assert agent.result()["ended"] == "cancelled"


@pytest.mark.parametrize("how", ["file", "signal"])
def test_cancel_ends_the_run(tmp_path: Path, start: Any, how: str) -> None:
    """The file `cancel` and SIGTERM both end every process and are reported as cancelled."""
    agent = start(make_trial(tmp_path / "t", "describe", ranks=2))
    wait_for((tmp_path / "t" / "output" / "facts.json").exists, "training started")
    if how == "file":
        (tmp_path / "t" / "cancel").touch()
    else:
        agent.process.terminate()
    assert agent.result()["ended"] == "cancelled"


def test_cancel_before_the_start_launches_nothing(tmp_path: Path, start: Any) -> None:
    """A trial that was cancelled while it waited never starts its command."""
    plan = make_trial(tmp_path / "t", "normal")
    (tmp_path / "t" / "cancel").touch()
    result = start(plan).result()
    assert (result["ended"], result["exit_code"], result["ranks"][0]["hello"]) == ("cancelled", None, False)
    assert not (tmp_path / "t" / "launcher.log").exists()


def test_escaped_process_is_ended(tmp_path: Path, start: Any) -> None:
    """A child that left session, folder and environment and ignores SIGTERM does not outlive the trial."""
    result = start(make_trial(tmp_path / "t", "escape")).result()
    assert result["exit_code"] == 0
    pid = int((tmp_path / "t" / "output" / "escaped").read_text())
    stat = read_stat(pid)
    assert stat is None or not stat.alive


def test_killed_agent_takes_the_launcher_with_it(tmp_path: Path, start: Any) -> None:
    """SIGKILL to the agent ends the launcher, and no result is claimed."""
    plan = make_trial(tmp_path / "t", "silent")
    agent = start(plan)
    wait_for((tmp_path / "t" / "updates-0.jsonl").exists, "training started")
    assert descendants(agent.process.pid)
    agent.process.kill()
    wait_for(lambda: no_process_left(plan), "launcher ended")
    assert not (tmp_path / "t" / "result.json").exists()


def test_second_start_is_refused(tmp_path: Path, start: Any) -> None:
    """A trial folder is run once: a second agent leaves everything as it is."""
    plan = make_trial(tmp_path / "t", "normal")
    first = start(plan).result()
    assert start(plan).process.wait(30) == 3
    assert read_json(tmp_path / "t" / "result.json") == first


def test_only_one_connection_per_rank(tmp_path: Path, start: Any) -> None:
    """A second process of a rank is refused silently; one that claims another rank is noted as well."""
    result = start(make_trial(tmp_path / "t", "second", ranks=2)).result()
    for rank in result["ranks"]:
        number = rank["rank"]
        assert read_json(tmp_path / "t" / "output" / f"answers-{number}") == ["refuse", "refuse"]
        note = f"process {rank['pid']} of rank {number} said hello as rank {1 - number}"
        assert (rank["updates"], rank["protocol_errors"]) == (5, [note])


def test_foreign_process_is_refused(tmp_path: Path, start: Any) -> None:
    """A process that is no descendant of the agent gets no rank, whatever it says."""
    agent = start(make_trial(tmp_path / "t", "describe"))
    facts = wait_for((tmp_path / "t" / "output" / "facts.json").exists, "training started")
    facts = read_json(tmp_path / "t" / "output" / "facts.json")
    path = facts["environ"]["INFRARSI_PROBE_SOCKET"]
    speaker = Speaker(rank=0, path=path)
    assert speaker.hello() == "refuse"
    speaker.reader.close()
    speaker.sock.close()
    assert os.stat(os.path.dirname(path)).st_mode & 0o777 == 0o700
    (tmp_path / "t" / "output" / "release").touch()
    result = agent.result()
    assert result["ranks"][0]["protocol_errors"] == [
        f"process {os.getpid()} from outside the trial was refused"
    ]
    assert not os.path.exists(path)


def test_garbage_is_noted_and_survived(tmp_path: Path, start: Any) -> None:
    """Broken lines, gaps and wrong ranks are named one by one, and the run still counts."""
    result = start(make_trial(tmp_path / "t", "garbage")).result()
    errors = result["ranks"][0]["protocol_errors"]
    expected = [
        "bad JSON",
        "bad JSON",
        "not an object",
        "bad JSON",
        "update: rank 7 on",
        "update: seq 7 where 2 was due",
        "unknown kind: 'nonsense'",
        "end: seq 9 where 8 was due",
    ]
    assert len(errors) == len(expected)
    assert all(error.startswith(start) for error, start in zip(errors, expected, strict=True))
    assert (result["ended"], result["ranks"][0]["updates"]) == ("exited", 2)
    assert read_json(tmp_path / "t" / "exit-0.json")["protocol_errors"] == errors


def test_large_record_arrives_whole(tmp_path: Path, start: Any) -> None:
    """A line of 3 MiB is one record."""
    result = start(make_trial(tmp_path / "t", "large")).result()
    assert result["ranks"][0]["protocol_errors"] == []
    assert len(records_of(tmp_path / "t")[1]["model"]) == 3 << 20


def test_training_sees_a_scrubbed_environment(tmp_path: Path, start: Any) -> None:
    """Keys and scheduler variables stay outside; SLURM_CONF, the plan's and the probe's variables get in."""
    plan = make_trial(
        tmp_path / "t", "describe", env={"MINE": "1"}, unset=["NOT_WANTED"], setup=["export SET=up"]
    )
    agent = start(
        plan,
        ANTHROPIC_API_KEY="k",
        WANDB_API_KEY="k",
        HF_TOKEN="k",
        SLURM_CPU_BIND="x",
        SLURM_CONF="/etc/slurm.conf",
        NOT_WANTED="1",
        WORLD_SIZE="64",
        PYTHONPATH="/their/path",
    )
    wait_for((tmp_path / "t" / "output" / "facts.json").exists, "training started")
    facts = read_json(tmp_path / "t" / "output" / "facts.json")
    (tmp_path / "t" / "output" / "release").touch()
    agent.result()
    environ = facts["environ"]
    gone = {
        "ANTHROPIC_API_KEY",
        "WANDB_API_KEY",
        "HF_TOKEN",
        "SLURM_CPU_BIND",
        "NOT_WANTED",
        "PYTHONSAFEPATH",
    }
    assert not gone & environ.keys()
    wanted = {"SLURM_CONF": "/etc/slurm.conf", "MINE": "1", "SET": "up", "WORLD_SIZE": "1", "RANK": "0"}
    assert {name: environ[name] for name in wanted} == wanted
    assert environ["PYTHONPATH"] == f"{plan.probe_dir}:/their/path"
    assert facts["cwd"] == plan.workdir


def test_memory_limit_is_set_and_seen(tmp_path: Path, start: Any) -> None:
    """The soft data limit reaches the training process and is confirmed from outside."""
    limit = 3 << 30
    agent = start(make_trial(tmp_path / "t", "describe", memory_limit_bytes=limit, setup=["true"]))
    wait_for((tmp_path / "t" / "output" / "facts.json").exists, "training started")
    (tmp_path / "t" / "output" / "release").touch()
    result = agent.result()
    assert read_json(tmp_path / "t" / "output" / "facts.json")["limit"][0] == limit
    assert result["ranks"][0]["limit_seen_bytes"] == limit
    assert result["ranks"][0]["protocol_errors"] == []


def test_lifted_memory_limit_is_noted(tmp_path: Path, start: Any) -> None:
    """A script that raises its own limit is found out."""
    agent = start(make_trial(tmp_path / "t", "lift", memory_limit_bytes=3 << 30))
    wait_for(lambda: (tmp_path / "t" / "updates-0.jsonl").exists(), "training started")
    wait_for(lambda: len(records_of(tmp_path / "t")) > 20, "a sample was taken meanwhile")
    (tmp_path / "t" / "output" / "release").touch()
    rank = agent.result()["ranks"][0]
    assert rank["limit_lifted"] is True
    assert rank["protocol_errors"] == ["the memory limit was lifted during the run"]


def test_limit_lifted_to_report_an_exception_is_no_breach(tmp_path: Path, start: Any) -> None:
    """What the probe lifts after the last update, to be able to report, is not held against the run."""
    rank = start(make_trial(tmp_path / "t", "report", memory_limit_bytes=3 << 30)).result()["ranks"][0]
    assert rank["exception"]["message"] == "out of memory"
    assert rank["limit_lifted"] is False
    assert rank["protocol_errors"] == []


def test_a_wrapper_gives_its_rank_to_the_training_process(tmp_path: Path, start: Any) -> None:
    """The records of the process below are the rank's; neither is a breach."""
    result = start(make_trial(tmp_path / "t", "wrap")).result()
    rank = result["ranks"][0]
    assert (result["ended"], result["exit_code"]) == ("exited", 0)
    assert (rank["updates"], rank["end"], rank["protocol_errors"]) == (5, True, [])
    kinds = [record["k"] for record in records_of(tmp_path / "t")]
    assert kinds == ["hello", "torch", *["update"] * 5, "end"]
    assert rank["pid"] == int((tmp_path / "t" / "output" / "inner").read_text())


@pytest.mark.parametrize("mode", ["consult", "plain", "outlive"])
def test_a_rank_gets_its_place_back(tmp_path: Path, start: Any, mode: str) -> None:
    """A Python tool that ran, or still runs when the rank imports torch, takes nothing from it."""
    rank = start(make_trial(tmp_path / "t", mode)).result()["ranks"][0]
    assert (rank["updates"], rank["end"], rank["protocol_errors"]) == (5, True, [])
    assert rank["pid"] == int((tmp_path / "t" / "output" / "outer").read_text())
    kinds = [record["k"] for record in records_of(tmp_path / "t")]
    assert kinds == ["hello", *([] if mode == "plain" else ["torch"]), *["update"] * 5, "end"]


def test_a_finished_process_gives_its_rank_to_the_next(tmp_path: Path, start: Any) -> None:
    """A preparation step that ran first and ended does not end the trial."""
    script = str(PAYLOADS / "trainer.py")
    output = str(tmp_path / "t" / "output")
    line = f"{sys.executable} {script} prepare {output} && exec {sys.executable} {script} normal {output}"
    result = start(make_trial(tmp_path / "t", "-", command=["sh", "-c", line])).result()
    rank = result["ranks"][0]
    assert result["wall_s"] < 10
    assert (rank["updates"], rank["end"], rank["protocol_errors"]) == (5, True, [])


def test_workers_of_a_rank_with_torch_are_refused(tmp_path: Path, start: Any) -> None:
    """Once the rank has imported torch, a process below it gets no place."""
    result = start(make_trial(tmp_path / "t", "employ")).result()
    assert (tmp_path / "t" / "output" / "worker").read_text() == "refuse"
    assert (result["ranks"][0]["updates"], result["ranks"][0]["protocol_errors"]) == (5, [])


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ({"command": ["/no/such/program"]}, "/no/such/program"),
        ({"workdir": "/no/such/folder"}, "/no/such/folder"),
        ({"launcher": "srun"}, "needs a Slurm job"),
        ({"nodes": 2}, "one node"),
        ({"command": []}, "is empty"),
        ({"env": {"BAD": "nul\0byte"}}, "null byte"),
    ],
)
def test_failed_launch_is_a_result(tmp_path: Path, start: Any, overrides: dict[str, Any], words: str) -> None:
    """What cannot be started is reported with its cause, in an ordinary result."""
    result = start(make_trial(tmp_path / "t", "normal", **overrides)).result()
    assert result["ended"] == "launch_failed"
    assert words in result["launch_error"]
    assert (result["exit_code"], result["signal"]) == (None, None)


def test_unusable_spec_is_explained(tmp_path: Path) -> None:
    """A spec without its keys ends with exit code 2 and their names."""
    (tmp_path / "spec.json").write_text('{"version": 1, "trial_id": "t"}')
    done = subprocess.run(
        [sys.executable, "-P", "-m", "slurm.agent", str(tmp_path / "spec.json")],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert "missing keys: token" in done.stderr
