"""Studies to be broken, on clusters of both flavours; see tests/drills/README.md."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.drills.drilled import DrilledStudy
from tests.slurm_cluster.cluster import SlurmCluster

NewStudy = Callable[..., DrilledStudy]


def _stage(cluster: SlurmCluster, folder: Path) -> Iterator[NewStudy]:
    staged: list[DrilledStudy] = []

    def make(task: str = "eight", **changes: Any) -> DrilledStudy:
        drilled = DrilledStudy(cluster, folder / f"drill-{len(staged)}", task, changes)
        staged.append(drilled)
        return drilled

    yield make
    for drilled in staged:
        drilled.end()


@pytest.fixture
def plain(plain_cluster: SlurmCluster, tmp_path: Path) -> Iterator[NewStudy]:
    """Makes studies on a cluster without accounting: `plain("sixteen", pace__step_ms=5)`."""
    yield from _stage(plain_cluster, tmp_path)


@pytest.fixture
def accounting(accounting_cluster: SlurmCluster, tmp_path: Path) -> Iterator[NewStudy]:
    """The same on a cluster with slurmdbd."""
    yield from _stage(accounting_cluster, tmp_path)


@pytest.fixture
def stage(cluster: SlurmCluster, tmp_path: Path) -> Iterator[NewStudy]:
    """The same on both, one after the other."""
    yield from _stage(cluster, tmp_path)
