"""The process in which torch is imported once; the ranks of each trial are forked from it.

`python -m recording.ranks SAMPLE` answers JSON lines on stdin with JSON lines on stdout.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import runpy
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import Any

WARMUP_UPDATES, MEASURED_UPDATES = 1, 5  # five: one log line at every logging interval of the samples


def serve(folder: Path) -> None:
    """Answer requests until stdin ends, each with the peak VmData of its ranks and whether time ran out."""
    import torch.distributed.fsdp
    import torch.nn.attention.flex_attention
    import torch.utils.checkpoint
    import torch.utils.data  # noqa: F401

    os.chdir(folder)
    sys.path[0] = str(folder)  # as if the script had been started from here
    print("ready", flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        ranks = []
        for rank in range(request["ranks"]):
            pid = os.fork()
            if pid == 0:
                os.setpgid(0, 0)
                run_rank(request, rank)
            ranks.append(pid)
        print(json.dumps(wait_for(ranks, time.monotonic() + request["timeout_s"])), flush=True)


def run_rank(request: dict[str, Any], rank: int) -> None:
    """Limit this rank's memory, run the sample's script, leave a result or an error file; never returns."""
    folder = Path(request["folder"])
    log = os.open(folder / f"log.{rank}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(log, 1)
    os.dup2(log, 2)
    world = str(request["ranks"])
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=world, LOCAL_WORLD_SIZE=world)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(request["port"]))
    limit = int(request["limit_gib"] * 2**30)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    sys.argv = ["train.py", "--config", str(folder / "config.toml"), "--output-dir", str(folder / "out")]
    try:
        end_after_updates(folder / f"result.{rank}.json")
        runpy.run_path("train.py", run_name="__main__")
    except BaseException as error:  # whatever ended the rank is the result
        record = {
            "type": type(error).__name__,
            "message": str(error)[:2000],
            "time": time.time(),
            "vmdata_kib": status_kib("VmData", os.getpid()),
            "trace": traceback.format_exc()[-3000:],
        }
        (folder / f"error.{rank}.json").write_text(json.dumps(record))
    os._exit(1)


def end_after_updates(result: Path) -> None:
    """Have this process write its timings and end after the last wanted update, whatever max_steps."""
    from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

    depth = [0]  # ZeroRedundancyOptimizer steps another optimizer inside its own step
    wall, cpu = [time.perf_counter()], [time.process_time()]

    def before(*_: Any) -> None:
        depth[0] += 1

    def after(*_: Any) -> None:
        depth[0] -= 1
        if depth[0]:
            return
        wall.append(time.perf_counter())
        cpu.append(time.process_time())
        if len(wall) > WARMUP_UPDATES + MEASURED_UPDATES:
            record = {"wall": wall, "cpu": cpu, "vmdata_kib": status_kib("VmData", os.getpid())}
            result.write_text(json.dumps(record))
            sys.stdout.flush()
            os._exit(0)  # nothing to tear down: the peers stop after the same update

    register_optimizer_step_pre_hook(before)
    register_optimizer_step_post_hook(after)


def wait_for(ranks: list[int], deadline: float) -> dict[str, Any]:
    """Watch the ranks until they end; once one has failed the others get two more seconds."""
    peak, failed, timed_out, alive = 0, False, False, set(ranks)
    while alive:
        peak = max(peak, *(status_kib("VmData", pid) for pid in alive))
        for pid in list(alive):
            done, code = os.waitpid(pid, os.WNOHANG)
            if done:
                alive.discard(pid)
                if code and not failed:
                    failed, deadline = True, min(deadline, time.monotonic() + 2)
        if time.monotonic() > deadline:
            timed_out = not failed
            break
        time.sleep(0.02)
    for pid in ranks:  # with them, loader processes that outlived their rank
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
    for pid in alive:
        os.waitpid(pid, 0)
    return {"peak_kib": peak, "timed_out": timed_out}


def status_kib(key: str, pid: int) -> int:
    """A memory line of /proc/PID/status in KiB; 0 once the process is gone."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/status") as lines:
        return next((int(line.split()[1]) for line in lines if line.startswith(key + ":")), 0)
    return 0


if __name__ == "__main__":
    serve(Path(sys.argv[1]))
