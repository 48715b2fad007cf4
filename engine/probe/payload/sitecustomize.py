"""Starts the probe in a training rank, then hands over to the `sitecustomize` that this file hides.

Python imports this module before any user code. It binds the clocks first, so that no later patch of the
`time` module can reach the measurements. In a process that is not a rank it only hands over.
"""

from __future__ import annotations

import _infrarsi_probe.clocks  # noqa: F401  # isort: skip (first: binds the clocks)
import os
import sys


def _start_probe() -> None:
    if not os.environ.get("INFRARSI_PROBE_SOCKET"):
        return
    try:
        from _infrarsi_probe.startup import start

        start(os.environ)
    except Exception as error:
        sys.stderr.write("infrarsi probe: not started: %r\n" % (error,))


def _run_hidden_sitecustomize() -> None:
    from importlib.machinery import PathFinder
    from importlib.util import module_from_spec

    here = os.path.dirname(os.path.abspath(__file__))
    others = [entry for entry in sys.path if os.path.abspath(entry or os.curdir) != here]
    spec = PathFinder.find_spec("sitecustomize", others)
    if spec is None or spec.loader is None:
        return
    try:
        spec.loader.exec_module(module_from_spec(spec))
    except Exception as error:
        sys.stderr.write("infrarsi probe: the project's sitecustomize failed: %r\n" % (error,))


_start_probe()
_run_hidden_sitecustomize()
