"""One thread for the libraries of our own process: login nodes allow a user few processes and threads."""

from __future__ import annotations

import json
from collections.abc import MutableMapping

from slurm.agent.environment import THREADS_BEFORE

LIMITS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "POLARS_MAX_THREADS", "RAYON_NUM_THREADS")


def limit_threads(environ: MutableMapping[str, str]) -> None:
    """Allow one thread each; the caller's own values are noted for the jobs, which get them back.

    The libraries read these when they are loaded, so this comes before the first import of one.
    """
    if THREADS_BEFORE in environ:
        return
    environ[THREADS_BEFORE] = json.dumps({name: environ.get(name) for name in LIMITS})
    environ.update(dict.fromkeys(LIMITS, "1"))
