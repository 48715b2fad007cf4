"""The checks of one machine as a JSON file: run here, and by a job on a node. Standard library only.

`python -P -m slurm.doctor.node_report FOLDER REPORT [--cluster] [--internet] [--answer FOLDER]`
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import sys
from pathlib import Path

from slurm.doctor import peer
from slurm.doctor.machine import machine_checks
from slurm.doctor.storage import storage_checks

ROUNDS = 10
ANSWER_S = 60.0


def main(argv: list[str]) -> int:
    """Make the checks, write the report through a temporary name, then answer pings for a while."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("report", type=Path)
    parser.add_argument("--cluster", action="store_true")
    parser.add_argument("--internet", action="store_true")
    parser.add_argument("--answer", type=Path)
    options = parser.parse_args(argv)
    checks = [
        *machine_checks(on_cluster=options.cluster, internet=options.internet),
        *storage_checks(options.folder, on_cluster=options.cluster),
    ]
    report = {
        "node": os.environ.get("SLURMD_NODENAME") or socket.gethostname(),
        "checks": [check.value() for check in checks],
    }
    peer.replace_file(options.report, json.dumps(report).encode())
    if options.answer is not None:
        peer.answer(options.answer, ROUNDS, ANSWER_S)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
