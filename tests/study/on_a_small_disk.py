"""Run a study on a small file system that fills up during the first baseline; prints what happened as JSON.

Exit code 77: nothing can be mounted here. Runs as root or inside `unshare -rm`.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.study.processes import all_gone, finish, infrarsi, processes_of, start, wait_for

SIZE = "6m"


def main(folder: Path) -> int:
    small = folder / "small"
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs", str(small)], capture_output=True, text=True
    )
    if mounted.returncode != 0:
        sys.stderr.write(mounted.stderr)
        return 77
    try:
        print(json.dumps(watch(folder, small / "study")))
    finally:
        subprocess.run(["umount", "--lazy", str(small)], check=False)
    return 0


def watch(folder: Path, study: Path) -> dict[str, object]:
    process = start(folder, "run", folder / "project", "--out", study, "--display", "none")
    wait_for(process, study, lambda state: any(trial.handle for trial in state.trials.values()))
    filler = study.parent / "filler"
    with contextlib.suppress(OSError), filler.open("wb", buffering=0) as stream:
        while True:
            stream.write(b"x" * 4096)
    code, value, narration = finish(process)
    status_code, status, _ = infrarsi(folder, "status", study)
    all_gone(study)
    left = processes_of(study)
    filler.unlink()
    before = len(status["trials"])
    again = start(folder, "resume", study, "--display", "none")
    state = wait_for(
        again, study, lambda state: sum(trial.outcome is not None for trial in state.trials.values()) > before
    )
    os.kill(again.pid, signal.SIGINT)
    finish(again)
    return {
        "run": {"code": code, "value": value, "narration": narration},
        "status": {"code": status_code, "value": status},
        "left": left,
        "resumed": {"progress": len(state.trials) > before},
    }


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
