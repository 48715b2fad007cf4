"""Starts the ranks of one node and ends them all when one fails, as torchrun does.

launch.py --nproc N [--nnodes N --node-rank R --master-addr A --master-port P --output DIR]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import sys
import time
import tomllib

from landscape import behaviour

_HERE = os.path.dirname(os.path.abspath(__file__))
_GRACE_S = 2.0


def _arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--nproc", type=int, required=True)
    parser.add_argument("--nnodes", type=int, default=1)
    parser.add_argument("--node-rank", type=int, default=0)
    parser.add_argument("--master-addr", default="127.0.0.1")
    parser.add_argument("--master-port", default="0")
    parser.add_argument("--output", default="")
    return parser.parse_args()


def _config():
    try:
        with open("config.toml", "rb") as stream:
            return tomllib.load(stream)
    except FileNotFoundError:
        return {}


def _start(arguments, local_rank, spec):
    environment = {
        **os.environ,
        "RANK": str(arguments.node_rank * arguments.nproc + local_rank),
        "LOCAL_RANK": str(local_rank),
        "WORLD_SIZE": str(arguments.nproc * arguments.nnodes),
        "LOCAL_WORLD_SIZE": str(arguments.nproc),
        "MASTER_ADDR": arguments.master_addr,
        "MASTER_PORT": arguments.master_port,
        "TRAINING_SPEC": spec,
    }
    # Without site and user paths: a rank starts in 20 ms, and no probe but the one that it plays itself.
    command = [sys.executable, "-I", "-S", "-B", os.path.join(_HERE, "trainer.py")]
    return os.posix_spawn(sys.executable, command, environment, setsid=True)


def _signal_all(pids, number):
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def _end(pids):
    """Ask the ranks to end, and make them."""
    _signal_all(pids, signal.SIGTERM)
    deadline = time.monotonic() + _GRACE_S
    while pids and time.monotonic() < deadline:
        pid, _ = os.waitpid(-1, os.WNOHANG)
        if pid:
            pids.discard(pid)
        else:
            time.sleep(0.02)
    _signal_all(pids, signal.SIGKILL)


def main():
    """Exit with 0 when every rank did, with 1 when one failed."""
    arguments = _arguments()
    config = _config()
    spec = behaviour(config, arguments.output or str(os.getppid()))
    ranks = {}

    def on_signal(number, _frame):
        _end(set(ranks))
        os._exit(128 + number)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, on_signal)
    for local_rank in range(arguments.nproc):
        ranks[_start(arguments, local_rank, json.dumps(spec))] = local_rank
    while ranks:
        pid, status = os.wait()
        local_rank = ranks.pop(pid, None)
        code = os.waitstatus_to_exitcode(status)
        if local_rank is not None and code:
            print(f"launcher: failed (exitcode: {code}) local_rank: {local_rank} (pid: {pid})", flush=True)
            _end(set(ranks))
            sys.exit(1)


main()
