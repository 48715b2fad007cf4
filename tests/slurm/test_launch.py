"""Command lines and ports."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

from slurm.agent.launch import Meeting, launcher_command, with_setup
from slurm.agent.node import identify
from slurm.agent.plan import LaunchPlan, load_plan
from slurm.agent.ports import CONTROL_CANDIDATES, control_ports, free_port, is_free
from slurm.agent.srun import srun_command
from tests.slurm.trial_folder import make_trial


def _plan(tmp_path: Path, **overrides: Any) -> LaunchPlan:
    make_trial(tmp_path / "t", "normal", **overrides)
    return load_plan(tmp_path / "t" / "spec.json")


def test_torchrun_gets_layout_and_port(tmp_path: Path) -> None:
    """The whole torchrun command, word by word."""
    plan = _plan(
        tmp_path, launcher="torchrun", ranks=4, python="/venv/bin/python", command=["train.py", "--x"]
    )
    assert launcher_command(plan, Meeting(port=23456)) == [
        "/venv/bin/python",
        "-m",
        "torch.distributed.run",
        "--nnodes=1",
        "--nproc-per-node=4",
        "--node-rank=0",
        "--master-addr=127.0.0.1",
        "--master-port=23456",
        "--max-restarts=0",
        "train.py",
        "--x",
    ]


def test_every_node_meets_at_the_head(tmp_path: Path) -> None:
    """On several nodes torchrun and a command of one's own get the node's rank and the head's address."""
    there = Meeting(node_rank=1, address="10.0.0.7", port=20001)
    plan = _plan(tmp_path / "a", launcher="torchrun", ranks=8, nodes=2, command=["train.py"])
    assert launcher_command(plan, there)[3:] == [
        "--nnodes=2",
        "--nproc-per-node=8",
        "--node-rank=1",
        "--master-addr=10.0.0.7",
        "--master-port=20001",
        "--max-restarts=0",
        "train.py",
    ]
    words = ["run", "--node={node_rank}", "{master_addr}:{master_port}"]
    own = _plan(tmp_path / "b", nodes=2, command=words)
    assert launcher_command(own, there) == ["run", "--node=1", "10.0.0.7:20001"]


def test_srun_is_told_everything(tmp_path: Path) -> None:
    """The step's shape is in its arguments: no variable of the job reaches srun; the user's come last."""
    plan = _plan(
        tmp_path,
        launcher="srun",
        ranks=8,
        nodes=2,
        cpus_per_rank=3,
        python="/venv/bin/python",
        srun_args=["--container-image=x"],
    )
    node = identify({"SLURM_NODEID": "0", "SLURM_STEP_NUM_NODES": "2", "SLURM_JOB_ID": "77"})
    command = srun_command(plan, node, ["n1", "n2"])
    assert command[:2] == ["srun", "--jobid=77"]
    wanted = {
        "--overlap",
        "--kill-on-bad-exit=1",
        "--wait=60",
        "--nodes=2",
        "--nodelist=n1,n2",
        "--ntasks=16",
        "--ntasks-per-node=8",
        "--cpus-per-task=3",
        "--export=ALL",
    }
    assert wanted <= set(command)
    assert command[-4:-1] == ["--container-image=x", "/venv/bin/python", "-I"]
    assert Path(command[-1]).name == "shim.py"


def test_script_runs_with_the_training_interpreter(tmp_path: Path) -> None:
    """A Python file is given to the task's interpreter; a program is run as it is."""
    script = _plan(tmp_path / "a", python="/venv/bin/python", command=["train.py"])
    program = _plan(tmp_path / "b", python="/venv/bin/python", command=["./run.sh", "train.py"])
    assert launcher_command(script, Meeting()) == ["/venv/bin/python", "train.py"]
    assert launcher_command(program, Meeting()) == ["./run.sh", "train.py"]


def test_only_known_placeholders_are_filled(tmp_path: Path) -> None:
    """Braces of other meaning, such as JSON, pass through untouched."""
    words = ["run", "{master_addr}:{master_port}", "--rank={node_rank}", '{"a": {}}', "{output}"]
    filled = launcher_command(_plan(tmp_path, command=words), Meeting(port=9))
    assert filled == ["run", "127.0.0.1:9", "--rank=0", '{"a": {}}', "{output}"]


def test_setup_lines_keep_the_arguments_as_they_are() -> None:
    """Variables and functions of the setup reach the command; its arguments are never read by the shell."""
    arguments = ["a b", "$HOME", "'", '"', "new\nline", "*"]
    code = "import os, sys; print(repr((os.environ['SET'], sys.argv[1:])))"
    command = with_setup(["export SET='x y'"], [sys.executable, "-c", code, *arguments])
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert printed.strip() == repr(("x y", arguments))


def test_e21_free_port_is_bindable_and_not_the_kernels() -> None:
    """The port lies below the ephemeral range and can be bound at once."""
    first_ephemeral = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    for _ in range(20):
        port = free_port()
        assert 1024 < port < first_ephemeral
        with socket.socket() as server:
            server.bind(("127.0.0.1", port))


def test_a_port_in_use_is_not_free() -> None:
    """A port counts as taken when it is bound on any address of the machine."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        port = server.getsockname()[1]
        assert not is_free("127.0.0.1", port)
        assert not is_free("127.0.0.2", port)


def test_control_ports_follow_from_the_token() -> None:
    """Every node derives the same candidates, and another trial has others."""
    ports = control_ports("a" * 32)
    assert ports == control_ports("a" * 32)
    assert ports != control_ports("b" * 32)
    assert len(set(ports)) == CONTROL_CANDIDATES
    assert all(15000 <= port < 32768 for port in ports)
