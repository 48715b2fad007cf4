"""The accounting flavour: a database server in the cluster's folder, and slurmdbd in front of it."""

from __future__ import annotations

import subprocess

from tests.slurm_cluster.configuration import Layout, slurmdbd_conf
from tests.slurm_cluster.daemons import ClusterError, Daemons
from tests.slurm_cluster.ports import listens


def start(daemons: Daemons, layout: Layout) -> None:
    """Start the database server and slurmdbd, and register the cluster.

    Raises:
        ClusterError: one of them does not come up.
    """
    conf = layout.folder / "slurmdbd.conf"
    conf.write_text(slurmdbd_conf(layout))
    conf.chmod(0o600)
    daemons.start("mariadbd", _server(layout))
    daemons.wait_for("mariadbd", lambda: listens(layout.database_port), 60.0)
    start_slurmdbd(daemons, layout)
    answer = subprocess.run(
        ["sacctmgr", "-i", "add", "cluster", layout.name],
        env=daemons.environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    if answer.returncode:
        raise ClusterError(f"sacctmgr: {answer.stdout}{answer.stderr}\n{daemons.log('slurmdbd')}")


def start_slurmdbd(daemons: Daemons, layout: Layout) -> None:
    """Start slurmdbd alone; the first start makes the tables."""
    daemons.start("slurmdbd", ["slurmdbd", "-D"])
    daemons.wait_for("slurmdbd", lambda: listens(layout.slurmdbd_port), 60.0)


def _server(layout: Layout) -> list[str]:
    """A server without system tables: it starts in an empty folder and lets everybody on this machine in."""
    folder = layout.folder
    return [
        "mariadbd",
        "--no-defaults",
        "--user=root",
        f"--datadir={folder}/database",
        f"--socket={folder}/run/database.socket",
        f"--pid-file={folder}/run/mariadbd.pid",
        f"--port={layout.database_port}",
        "--bind-address=127.0.0.1",
        "--skip-grant-tables",
        "--skip-name-resolve",
        "--skip-log-bin",
        "--innodb-buffer-pool-size=32M",
        "--innodb-log-file-size=16M",
        "--innodb-flush-log-at-trx-commit=0",
        "--innodb-doublewrite=0",
        "--innodb-stats-persistent=0",
        "--performance-schema=OFF",
        "--innodb-lock-wait-timeout=900",
    ]
