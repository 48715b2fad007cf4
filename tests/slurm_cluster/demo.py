"""`make slurm-demo`: the cluster of the tests, by hand and in the foreground."""

from __future__ import annotations

import argparse
import signal
import sys
import threading
from pathlib import Path

from tests.slurm_cluster.cluster import INSTALL, SlurmCluster, available
from tests.slurm_cluster.daemons import ClusterError
from tests.slurm_cluster.fixtures import short_folder

_PROJECT = Path("tests/slurm_cluster/project")


def main() -> int:
    """Bring a cluster up, say how to use it, wait for Ctrl-C."""
    parser = argparse.ArgumentParser(prog="make slurm-demo", description=__doc__)
    parser.add_argument("--no-accounting", action="store_true", help="without slurmdbd: sacct does not work")
    arguments = parser.parse_args()
    problem = available()
    if problem is not None:
        print(f"no cluster can be brought up here: {problem}\nas root: {INSTALL}", file=sys.stderr)
        return 1
    over = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: over.set())
    try:
        with SlurmCluster(short_folder(), accounting=not arguments.no_accounting) as cluster:
            print(_welcome(cluster), flush=True)
            over.wait()
            print("stopping", flush=True)
    except ClusterError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def _welcome(cluster: SlurmCluster) -> str:
    nodes = " and ".join(cluster.shape.node_names)
    sacct = "sacct works" if cluster.accounting else "sacct does not work"
    return f"""\
Slurm is up: {nodes} with {cluster.shape.gpus} GPUs each; {sacct}. In another terminal:

    export SLURM_CONF={cluster.folder}/slurm.conf
    .venv/bin/infrarsi run {_PROJECT}/infrarsi.toml --executor slurm --out /tmp/eight-ranks
    .venv/bin/infrarsi run {_PROJECT}/infrarsi.two_nodes.toml --executor slurm --out /tmp/sixteen-ranks

Logs of the daemons: {cluster.folder}/log. Ctrl-C ends the cluster and every job on it."""


if __name__ == "__main__":
    sys.exit(main())
