"""A study of a user without privileges, on a login node that allows few processes."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy
import pytest

from engine.schema.study import Stage
from tests.drills.drilled import ROOT, DrilledStudy
from tests.drills.ending import assert_nothing_lost
from tests.drills.holding import STEADY, failed_by_themselves
from tests.slurm_cluster.cluster import SlurmCluster

MOST_PROCESSES = 60
USER = "nobody"
_LOADS = "import numpy, polars, pydantic, submitit"
_TOO_MANY = f"""
import threading, time
for _ in range({MOST_PROCESSES} + 10):
    threading.Thread(target=time.sleep, args=(1,), daemon=True).start()
"""


def _as_user(words: list[str], environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Run a command as somebody else who may have few processes and threads."""
    account = pwd.getpwnam(USER)
    limited = f'ulimit -u {MOST_PROCESSES} && exec "$@"'
    user = (f"--reuid={account.pw_uid}", f"--regid={account.pw_gid}", "--clear-groups")
    return subprocess.run(
        ["setpriv", *user, "/bin/bash", "-c", limited, "bash", *words],
        cwd="/",
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )


def _python(environment: dict[str, str]) -> str:
    """An interpreter with the dependencies that this user may run; ours may lie in a closed folder.

    Skips where there is none, or where limits of processes are not kept.
    """
    for name in (sys.executable, shutil.which("python3", path="/usr/local/bin:/usr/bin:/bin")):
        if name is not None and _as_user([name, "-c", _LOADS], environment).returncode == 0:
            if "can't start new thread" not in _as_user([name, "-c", _TOO_MANY], environment).stderr:
                pytest.skip("no limit of processes is kept here")
            return name
    pytest.skip(f"{USER} may run no Python that has what we need")


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that everybody may enter, which pytest's own is not."""
    folder = Path(tempfile.mkdtemp(prefix="irsi-user-", dir="/tmp"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.mark.drill
@pytest.mark.parametrize("task", ["eight", "eight_held"])
def test_study_of_a_user_with_few_processes(
    plain_cluster: SlurmCluster, open_folder: Path, task: str
) -> None:
    """A whole study runs for a user without privileges under `ulimit -u 60`, jobs and holders included."""
    drilled = DrilledStudy(plain_cluster, open_folder / "drill", task, {"budget__trials": 1, **STEADY})
    packages = Path(numpy.__file__).parents[1]
    environment = {
        **drilled.environment,
        "HOME": str(drilled.root),
        "PYTHONPATH": f"{ROOT}{os.pathsep}{packages}",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    for path in (drilled.root, *drilled.root.rglob("*")):
        shutil.chown(path, USER)
    earlier = {job["id"] for job in plain_cluster.jobs()}
    words = ["run", str(drilled.project), "--executor", "slurm", "--out", str(drilled.study), "--json"]
    done = _as_user([_python(environment), "-P", "-m", "infrarsi_tui.main", *words], environment)
    assert done.returncode in (0, 1), done.stderr[-3000:]
    assert json.loads(done.stdout)["state"] == "done"
    assert_nothing_lost(drilled, failed_by_themselves(drilled), stage=Stage.DONE)
    assert {job["user"] for job in plain_cluster.jobs() if job["id"] not in earlier} == {USER}
    assert {path.owner() for path in drilled.study.rglob("*")} == {USER}
