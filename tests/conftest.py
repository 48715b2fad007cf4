"""Settings of the whole suite."""

from __future__ import annotations

import os

import pytest

pytest_plugins = ["tests.slurm_cluster.fixtures"]


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """In continuous integration a skipped test is a failure: what must run there has to run."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if os.environ.get("CI") and reporter is not None and reporter.stats.get("skipped"):
        reporter.write_line("skipped tests are failures in continuous integration", red=True)
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
