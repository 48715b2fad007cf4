"""What counts as left over on a node's GPUs, with a program that stands in for nvidia-smi."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from slurm.held.holder.devices import leftovers

_GPUS = "0, GPU-aa, 3\n1, GPU-bb, 4\n2, GPU-cc, 70000\n"


def _install(folder: Path, monkeypatch: pytest.MonkeyPatch, gpus: str, apps: str, code: int = 0) -> None:
    """Put a program named nvidia-smi first on PATH that gives these answers."""
    program = folder / "nvidia-smi"
    (folder / "gpus").write_text(gpus)
    (folder / "apps").write_text(apps)
    answer = f'case "$1" in --query-gpu*) cat {folder}/gpus;; *) cat {folder}/apps;; esac'
    program.write_text(f"#!/bin/sh\n{answer}\nexit {code}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")


def test_idle_devices_are_clean(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work on devices that are not ours is no concern of ours."""
    _install(tmp_path, monkeypatch, _GPUS, "GPU-cc, 44, /usr/bin/python3\n")
    assert leftovers(str(tmp_path / "trial")) == []


def test_compute_process_is_left_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that still computes on one of our devices is named; a service of the site is not."""
    apps = "GPU-bb, 55, /opt/a,b/python3\nGPU-aa, 7, /usr/bin/nvidia-cuda-mps-server\n"
    _install(tmp_path, monkeypatch, _GPUS, apps)
    assert leftovers(str(tmp_path / "trial")) == ["process 55 (python3) still uses GPU-bb"]


def test_memory_that_stays_is_left_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory that nobody seems to own makes a device dirty as well."""
    _install(tmp_path, monkeypatch, "0, GPU-aa, 3\n1, GPU-bb, 9000\n", "")
    assert leftovers(str(tmp_path / "trial")) == ["GPU 1 still holds 9000 MiB"]


def test_devices_that_cannot_be_asked_are_not_clean(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A lost GPU makes nvidia-smi fail: that is no clean bill."""
    _install(tmp_path, monkeypatch, "GPU is lost. Reboot the system to recover this GPU\n", "", code=15)
    assert leftovers(str(tmp_path / "trial")) == [
        "nvidia-smi failed: GPU is lost. Reboot the system to recover this GPU"
    ]


def test_allocation_without_gpus_asks_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On CPUs a broken driver of the node does not matter."""
    _install(tmp_path, monkeypatch, "", "", code=9)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert leftovers(str(tmp_path / "trial")) == []
