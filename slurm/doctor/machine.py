"""What a machine offers: sandbox, containers, compiler, git, GPU, limits. Standard library only."""

from __future__ import annotations

import ctypes
import os
import platform
import re
import resource
import shutil
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Optional

from slurm.doctor.check import ASK_A_NODE, Check
from slurm.doctor.mounts import mount_of, parse_mounts

GROUP = "machine"
INTERNET_URL = "https://api.anthropic.com"

_LANDLOCK_CREATE_RULESET = 444
_LANDLOCK_VERSION_FLAG = 1
_WAIT_S = 10.0
_FEW_PROCESSES = 256


def machine_checks(*, on_cluster: bool, internet: bool) -> list[Check]:
    """All checks of this machine; each ends within seconds."""
    return [
        python_check(on_cluster=on_cluster),
        processes_check(),
        landlock_check(landlock_abi()),
        _bubblewrap(),
        _containers(),
        _compiler(),
        _git(),
        _gpu(),
        internet_check(INTERNET_URL) if internet else _no_internet_check(),
    ]


def _said(*words: str) -> Optional[str]:  # noqa: UP045
    """First line that a program prints, None where it does not run."""
    try:
        done = subprocess.run(
            words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            check=False,
            timeout=_WAIT_S,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    lines = done.stdout.strip().splitlines()
    return lines[0].strip() if done.returncode == 0 and lines else None


def python_check(*, on_cluster: bool) -> Check:
    """Whether nodes are likely to find this interpreter."""
    where = Path(sys.prefix)
    found = f"{platform.python_version()}, {sys.executable}"
    try:
        mount = mount_of(where.resolve(), parse_mounts(Path("/proc/mounts").read_text(errors="replace")))
    except OSError:
        mount = None
    if not on_cluster or mount is None or mount.is_shared:
        return Check("python", GROUP, "ok", found)
    return Check(
        "python",
        GROUP,
        "warn",
        f"{found} (on {mount.kind})",
        "nodes run their agent with this interpreter, and this disk may not be theirs",
        f"{ASK_A_NODE}; else install on a shared disk",
    )


def processes_check() -> Check:
    """How many processes and threads the user may have."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    if limit == resource.RLIM_INFINITY or limit >= _FEW_PROCESSES:
        found = "no limit" if limit == resource.RLIM_INFINITY else f"at most {limit}"
        return Check("processes", GROUP, "ok", found)
    return Check(
        "processes",
        GROUP,
        "warn",
        f"at most {limit} processes and threads",
        "thread pools of numerical libraries fail to start; Slurm may pass the limit on to jobs",
        "export OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 POLARS_MAX_THREADS=1",
    )


def landlock_abi() -> Optional[int]:  # noqa: UP045
    """Version of Landlock in this kernel, None without it."""
    try:
        call = ctypes.CDLL(None, use_errno=True).syscall
    except (OSError, AttributeError):
        return None
    version = int(call(_LANDLOCK_CREATE_RULESET, None, 0, _LANDLOCK_VERSION_FLAG))
    return version if version > 0 else None


def landlock_check(abi: Optional[int]) -> Check:  # noqa: UP045
    """Whether the kernel can confine a training process."""
    if abi is not None:
        return Check("landlock", GROUP, "ok", f"ABI {abi}", "a patched training can be kept in its folder")
    return Check(
        "landlock",
        GROUP,
        "warn",
        f"not in this kernel ({platform.release()})",
        "patches can only be confined by bubblewrap or a container",
    )


def _bubblewrap() -> Check:
    path = shutil.which("bwrap")
    if path is None:
        return Check("bubblewrap", GROUP, "skipped", "bwrap is not installed", "needed only without Landlock")
    works = _said(path, "--ro-bind", "/", "/", "echo", "works") == "works"
    return Check(
        "bubblewrap",
        GROUP,
        "ok" if works else "warn",
        path if works else f"{path} does not work here",
        "" if works else "user namespaces are switched off",
    )


def _containers() -> Check:
    found = [name for name in ("enroot", "apptainer", "singularity", "podman") if shutil.which(name)]
    if not found:
        return Check(
            "containers", GROUP, "skipped", "no container tool", "needed only for jobs in containers"
        )
    return Check("containers", GROUP, "ok", ", ".join(found))


def _compiler() -> Check:
    for name in ("g++", "c++", "clang++"):
        version = _said(name, "--version")
        if version is not None:
            return Check("compiler", GROUP, "ok", f"{name}: {version}")
    return Check(
        "compiler",
        GROUP,
        "warn",
        "no C++ compiler",
        "torch.compile fails on a machine without one",
        "load a compiler module in task.setup",
    )


def _git() -> Check:
    version = _said("git", "--version")
    if version is not None:
        return Check("git", GROUP, "ok", version)
    return Check(
        "git", GROUP, "fail", "git is not there", "patches and deployment need it", "load a git module"
    )


def _gpu() -> Check:
    devices = [path.name for path in Path("/dev").glob("nvidia*") if re.fullmatch(r"nvidia\d+", path.name)]
    first = _said("nvidia-smi", "-L")
    if first is not None:
        return Check("gpu", GROUP, "ok", f"{len(devices)} NVIDIA devices; {first}")
    if devices:
        return Check("gpu", GROUP, "warn", f"{len(devices)} NVIDIA devices, nvidia-smi gives no answer")
    if os.path.exists("/dev/kfd"):
        return Check("gpu", GROUP, "ok", "AMD GPUs (/dev/kfd)")
    return Check(
        "gpu", GROUP, "skipped", "no GPU visible here", "as usual on login nodes and in jobs without GPUs"
    )


def internet_check(url: str, timeout_s: float = 5.0) -> Check:
    """One HEAD request; any answer counts."""
    try:
        with urllib.request.urlopen(urllib.request.Request(url, method="HEAD"), timeout=timeout_s):
            found = f"{url} answers"
    except urllib.error.HTTPError as error:
        found = f"{url} answers ({error.code})"
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        meaning = "the advisor `claude` cannot be asked from here; everything else works"
        return Check(
            "internet", GROUP, "warn", f"{url}: {reason}", meaning, "set HTTPS_PROXY if the site has a proxy"
        )
    return Check("internet", GROUP, "ok", found)


def _no_internet_check() -> Check:
    return Check("internet", GROUP, "skipped", "not asked", "", "`infrarsi doctor --internet` tries")
