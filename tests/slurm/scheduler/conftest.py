"""Fixtures of the scheduler's tests."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.slurm.scheduler.fake_slurm import FakeSlurm, MovedClock


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeSlurm:
    """Programs on PATH that answer what the test wants."""
    return FakeSlurm(tmp_path / "programs", monkeypatch)


@pytest.fixture
def clock() -> MovedClock:
    """A clock that the test moves."""
    return MovedClock()


@pytest.fixture(scope="session")
def slurm_configuration(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """An environment with which Slurm's programs that ask no daemon run."""
    file = tmp_path_factory.mktemp("slurm") / "slurm.conf"
    file.write_text("ClusterName=none\nSlurmctldHost=localhost\nNodeName=n1 CPUs=1\n")
    return {"PATH": os.environ["PATH"], "SLURM_CONF": str(file)}
