"""Stands in for srun: drops its options and runs the program once, as node 0 of as many as were asked for.

The file that FAKE_SRUN_MODE names holds a mode for each call to come: `run` (also when there is none), `away`
(the controller does not answer), `refuse`, `litter` (a process of the trial stays behind its agent), `linger`
(it waits on after its program, as for a node that is gone).
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path


def next_mode() -> str:
    """The mode of this call."""
    path = Path(os.environ.get("FAKE_SRUN_MODE", "/nonexistent"))
    try:
        words = path.read_text().split()
    except OSError:
        return "run"
    path.write_text(" ".join(words[1:]))
    return words[0] if words else "run"


def output_of(options: list[str]) -> str:
    """The file of `--output FILE` or `--output=FILE`."""
    for number, option in enumerate(options):
        if option == "--output":
            return options[number + 1]
        if option.startswith("--output="):
            return option.partition("=")[2]
    return os.devnull


def main() -> int:
    """Run the program; its exit code."""
    words = sys.argv[1:]
    first = words.index(sys.executable)
    options, command = words[:first], words[first:]
    mode = next_mode()
    if mode == "away":
        print("srun: error: Unable to contact slurm controller (connect failure)", file=sys.stderr)
        return 1
    if mode == "refuse":
        print("srun: error: Unable to create step: Requested node configuration", file=sys.stderr)
        return 1
    with open(output_of(options), "ab") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    for number in (signal.SIGUSR2, signal.SIGTERM):
        signal.signal(number, lambda received, _frame: process.send_signal(received))
    code = process.wait()
    if mode == "linger":
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        time.sleep(600)
    if mode == "litter":
        trial_dir = Path(command[-1]).parent
        sleeper = [sys.executable, "-c", "import time; time.sleep(600)"]
        left = subprocess.Popen(sleeper, env={"PYTHONPATH": f"{trial_dir}/probe"}, start_new_session=True)
        (trial_dir / "left").write_text(str(left.pid))
    return code


if __name__ == "__main__":
    sys.exit(main())
