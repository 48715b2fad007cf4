"""Command lines and ports."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

from slurm.agent.launch import free_port, launcher_command, with_setup
from slurm.agent.plan import LaunchPlan, load_plan
from tests.slurm.trial_folder import make_trial


def _plan(tmp_path: Path, **overrides: Any) -> LaunchPlan:
    make_trial(tmp_path / "t", "normal", **overrides)
    return load_plan(tmp_path / "t" / "spec.json")


def test_torchrun_gets_layout_and_port(tmp_path: Path) -> None:
    """The whole torchrun command, word by word."""
    plan = _plan(
        tmp_path, launcher="torchrun", ranks=4, python="/venv/bin/python", command=["train.py", "--x"]
    )
    assert launcher_command(plan, 23456) == [
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


def test_script_runs_with_the_training_interpreter(tmp_path: Path) -> None:
    """A Python file is given to the task's interpreter; a program is run as it is."""
    script = _plan(tmp_path / "a", python="/venv/bin/python", command=["train.py"])
    program = _plan(tmp_path / "b", python="/venv/bin/python", command=["./run.sh", "train.py"])
    assert launcher_command(script, 1) == ["/venv/bin/python", "train.py"]
    assert launcher_command(program, 1) == ["./run.sh", "train.py"]


def test_only_known_placeholders_are_filled(tmp_path: Path) -> None:
    """Braces of other meaning, such as JSON, pass through untouched."""
    words = ["run", "{master_addr}:{master_port}", "--rank={node_rank}", '{"a": {}}', "{output}"]
    filled = launcher_command(_plan(tmp_path, command=words), 9)
    assert filled == ["run", "127.0.0.1:9", "--rank=0", '{"a": {}}', "{output}"]


def test_setup_lines_keep_the_arguments_as_they_are() -> None:
    """Variables and functions of the setup reach the command; its arguments are never read by the shell."""
    arguments = ["a b", "$HOME", "'", '"', "new\nline", "*"]
    code = "import os, sys; print(repr((os.environ['SET'], sys.argv[1:])))"
    command = with_setup(["export SET='x y'"], [sys.executable, "-c", code, *arguments])
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert printed.strip() == repr(("x y", arguments))


def test_free_port_is_bindable_and_not_the_kernels() -> None:
    """The port lies below the ephemeral range and can be bound at once."""
    first_ephemeral = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    for _ in range(20):
        port = free_port()
        assert 1024 < port < first_ephemeral
        with socket.socket() as server:
            server.bind(("127.0.0.1", port))
