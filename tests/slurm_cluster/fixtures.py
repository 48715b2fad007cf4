"""Fixtures with a real Slurm: started once per worker process, in order again before the next test.

`plain_cluster` has no accounting, `accounting_cluster` has; `cluster` is either, one after the other. While a
test holds one of them, SLURM_CONF points at it and variables of a job around the tests are gone.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import pytest

from tests.slurm_cluster.cluster import INSTALL, SlurmCluster, available

FIXTURES = frozenset({"plain_cluster", "accounting_cluster", "cluster", "cluster_factory"})
_LEFT_OUT = "Slurm is missing"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what uses a cluster, so that `-m "not slurm"` leaves it out; skip it where there is no Slurm."""
    problem = available()
    for item in items:
        if FIXTURES.intersection(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.slurm)
        if problem is not None and item.get_closest_marker("slurm") is not None:
            item.add_marker(pytest.mark.skip(reason=f"{_LEFT_OUT}: {problem}"))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> Generator[None, None, None]:
    """Say loudly, after everything else, what a missing Slurm has left out and what would change that."""
    yield
    skipped = terminalreporter.stats.get("skipped", [])
    count = sum(_LEFT_OUT in str(report.longrepr) for report in skipped)
    if count:
        text = f"{count} tests were LEFT OUT, {_LEFT_OUT} here ({available()}). As root: {INSTALL}"
        terminalreporter.write_line(text, red=True, bold=True)


def short_folder() -> Path:
    """A new folder that every user can enter, with a path short enough for sockets."""
    folder = Path(tempfile.mkdtemp(prefix="irsi-slurm-", dir="/tmp"))
    folder.chmod(0o755)
    return folder


@pytest.fixture(scope="session")
def running_plain_cluster() -> Iterator[SlurmCluster]:
    """The cluster behind `plain_cluster`."""
    with SlurmCluster(short_folder(), accounting=False) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def running_accounting_cluster() -> Iterator[SlurmCluster]:
    """The cluster behind `accounting_cluster`."""
    with SlurmCluster(short_folder(), accounting=True) as cluster:
        yield cluster


def _in_use(cluster: SlurmCluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[SlurmCluster]:
    for name in [name for name in os.environ if name.startswith(("SLURM_", "SBATCH_", "SRUN_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("SLURM_CONF", cluster.environment()["SLURM_CONF"])
    yield cluster
    cluster.heal()


@pytest.fixture
def plain_cluster(
    running_plain_cluster: SlurmCluster, monkeypatch: pytest.MonkeyPatch
) -> Iterator[SlurmCluster]:
    """Two nodes with eight GPUs each; `sacct` does not work."""
    yield from _in_use(running_plain_cluster, monkeypatch)


@pytest.fixture
def accounting_cluster(
    running_accounting_cluster: SlurmCluster, monkeypatch: pytest.MonkeyPatch
) -> Iterator[SlurmCluster]:
    """Two nodes with eight GPUs each, and slurmdbd."""
    yield from _in_use(running_accounting_cluster, monkeypatch)


@pytest.fixture(params=["plain", pytest.param("accounting", marks=pytest.mark.slow)])
def cluster(request: pytest.FixtureRequest) -> SlurmCluster:
    """Both flavours, one after the other; the second one belongs to the drills."""
    found = request.getfixturevalue(f"{request.param}_cluster")
    assert isinstance(found, SlurmCluster)
    return found


@pytest.fixture
def cluster_factory(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., SlurmCluster]]:
    """Makes clusters of another shape (arguments of SlurmCluster) for one test; the latest one is in use."""
    made: list[SlurmCluster] = []

    def make(*, accounting: bool = False, **shape: int) -> SlurmCluster:
        cluster = SlurmCluster(short_folder(), accounting=accounting, **shape)
        made.append(cluster)
        cluster.start()
        monkeypatch.setenv("SLURM_CONF", cluster.environment()["SLURM_CONF"])
        return cluster

    yield make
    for cluster in made:
        cluster.stop()
