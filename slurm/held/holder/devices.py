"""What a trial left on a node: processes of it, or work and memory on the GPUs of this allocation.

`python -P -m slurm.held.holder.devices TRIAL_DIR` prints what is left, one line each; exit code 1 if any is.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time

from slurm.agent.procfs import processes_of_trial

_SETTLE_S = 10.0
_POLL_S = 0.2
_QUERY_TIMEOUT_S = 20.0
_FREE_MIB = 1024
"""Device memory that drivers and services hold without any training."""
_SERVICES = ("nvidia-cuda-mps", "nvidia-persiste", "dcgm", "nv-hostengine")


class DeviceQueryError(Exception):
    """nvidia-smi gave no answer: then nobody knows whether the devices are clean."""


def leftovers(trial_dir: str) -> list[str]:
    """What is left of a trial on this node, in words; empty = clean."""
    found = [f"process {process.pid} of the trial still runs" for process in processes_of_trial(trial_dir)]
    try:
        return found + _on_devices()
    except DeviceQueryError as error:
        return [*found, str(error)]


def wait_until_clean(trial_dir: str, limit_s: float = _SETTLE_S) -> list[str]:
    """As `leftovers`, after giving a driver some seconds to clean up behind a killed process."""
    deadline = time.monotonic() + limit_s
    while True:
        found = leftovers(trial_dir)
        if not found or time.monotonic() >= deadline:
            return found
        time.sleep(_POLL_S)


def _on_devices() -> list[str]:
    ours = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    if not ours or shutil.which("nvidia-smi") is None:
        return []
    wanted = set(ours.split(","))
    uuids, found = set(), []
    for index, uuid, used in _query("--query-gpu=index,uuid,memory.used", columns=3):
        if index not in wanted and uuid not in wanted:
            continue
        uuids.add(uuid)
        if used.isdigit() and int(used) > _FREE_MIB:
            found.append(f"GPU {index} still holds {used} MiB")
    for uuid, pid, name in _query("--query-compute-apps=gpu_uuid,pid,process_name", columns=3):
        if uuid in uuids and not os.path.basename(name).startswith(_SERVICES):
            found.append(f"process {pid} ({os.path.basename(name)}) still uses {uuid}")
    return found


def _query(what: str, *, columns: int) -> list[list[str]]:
    try:
        answer = subprocess.run(
            ["nvidia-smi", what, "--format=csv,noheader,nounits"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_QUERY_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise DeviceQueryError(f"nvidia-smi gave no answer: {error}") from error
    if answer.returncode != 0:
        words = (answer.stdout + answer.stderr).strip().splitlines()
        raise DeviceQueryError(f"nvidia-smi failed: {words[-1] if words else answer.returncode}")
    rows = [[cell.strip() for cell in line.split(",", columns - 1)] for line in answer.stdout.splitlines()]
    return [row for row in rows if len(row) == columns]


def main(arguments: list[str]) -> int:
    """Print what is left of a trial; 0: nothing, 1: something, 2: a wrong call."""
    if len(arguments) != 1:
        print("usage: python -P -m slurm.held.holder.devices TRIAL_DIR", file=sys.stderr)
        return 2
    found = wait_until_clean(arguments[0])
    for line in found:
        print(f"{socket.gethostname()}: {line}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
