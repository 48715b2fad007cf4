"""Two engines on one study cannot both write."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from engine.errors import InfrastructureError, StudyBusyError
from engine.journal import lease
from tests.journal.disk import no_room

_CLAIM_AND_WAIT = """
import sys
import time
from pathlib import Path
from engine.journal.lease import claim_epoch
print(claim_epoch(Path(sys.argv[1])), flush=True)
sys.stdin.read()
"""


def _engine(journal: Path) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", _CLAIM_AND_WAIT, str(journal)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline().strip() == "0"
    return process


def test_e38_a_live_engine_keeps_others_out_and_a_killed_one_does_not(tmp_path: Path) -> None:
    """While the owner lives the study is busy; after kill -9 the next epoch is free."""
    with _engine(tmp_path) as owner:
        with pytest.raises(StudyBusyError) as caught:
            lease.claim_epoch(tmp_path)
        assert str(owner.pid) in caught.value.message
        owner.kill()
        owner.wait(timeout=30)
    assert lease.claim_epoch(tmp_path) == 1


def test_a_released_study_is_free(tmp_path: Path) -> None:
    """After a regular end nobody owns the study."""
    epoch = lease.claim_epoch(tmp_path)
    lease.release(tmp_path, epoch)
    assert lease.live_owner(tmp_path, epoch) is None
    assert lease.claim_epoch(tmp_path) == epoch + 1


def test_a_reused_pid_is_not_the_owner(tmp_path: Path) -> None:
    """A process with the owner's pid but another start time does not hold the lease."""
    with _engine(tmp_path) as owner:
        path = tmp_path / "000000.claim" / "lease.json"
        content = json.loads(path.read_text())
        assert content["host"] == socket.gethostname()
        path.write_text(json.dumps({**content, "start_ticks": content["start_ticks"] - 1}))
        assert lease.live_owner(tmp_path, 0) is None
        owner.kill()
        owner.wait(timeout=30)


def test_a_foreign_engine_lives_as_long_as_its_heartbeat(tmp_path: Path) -> None:
    """An owner on another host is judged by the age of its heartbeat."""
    claim = tmp_path / "000000.claim"
    claim.mkdir()
    content = {"pid": 1, "start_ticks": 1, "host": "elsewhere", "at": 0.0}
    (claim / "lease.json").write_text(json.dumps(content))
    assert lease.live_owner(tmp_path, 0) is None
    lease.beat(tmp_path, 0)
    fresh = json.loads((claim / "lease.json").read_text())
    (claim / "lease.json").write_text(json.dumps({**content, "at": fresh["at"]}))
    assert lease.live_owner(tmp_path, 0) == "process 1 on elsewhere"


@pytest.mark.parametrize("content", [None, "", "[]", "{}", '{"pid": 1, "host": "elsewhere"}', "\x00"])
def test_a_claim_that_says_nothing_yet_is_alive_while_young(tmp_path: Path, content: str | None) -> None:
    """Between the claim and a readable lease nobody may take over; a minute later the claim is dead."""
    claim = tmp_path / "000000.claim"
    claim.mkdir()
    if content is not None:
        (claim / "lease.json").write_text(content)
    assert lease.live_owner(tmp_path, 0) is not None
    with pytest.raises(StudyBusyError):
        lease.claim_epoch(tmp_path)
    old = time.time() - lease.STALE_S - 1.0
    os.utime(claim, (old, old))
    assert lease.live_owner(tmp_path, 0) is None
    assert lease.claim_epoch(tmp_path) == 1


def test_a_release_is_said_not_erased(tmp_path: Path) -> None:
    """A finished owner leaves a readable lease, so that its claim is not taken for a young one."""
    lease.claim_epoch(tmp_path)
    lease.release(tmp_path, 0)
    content = json.loads((tmp_path / "000000.claim" / "lease.json").read_text())
    assert content["released"] is True


def test_a_process_that_is_gone_owns_nothing(tmp_path: Path) -> None:
    """A lease without a start time does not match a process that does not exist."""
    claim = tmp_path / "000000.claim"
    claim.mkdir()
    content = {"pid": 2**30, "start_ticks": None, "host": socket.gethostname(), "at": time.time()}
    (claim / "lease.json").write_text(json.dumps(content))
    assert lease.live_owner(tmp_path, 0) is None


def test_a_claim_without_room_for_its_lease_is_taken_back(tmp_path: Path) -> None:
    """On a full disk the claim fails and keeps nobody out afterwards."""
    with no_room(), pytest.raises(InfrastructureError):
        lease.claim_epoch(tmp_path)
    assert lease.latest_epoch(tmp_path) is None
    assert lease.claim_epoch(tmp_path) == 0


def test_a_release_without_room_is_no_error(tmp_path: Path) -> None:
    """On a full disk the lease stays as it was."""
    lease.claim_epoch(tmp_path)
    before = (tmp_path / "000000.claim" / "lease.json").read_text()
    with no_room():
        lease.release(tmp_path, 0)
    assert (tmp_path / "000000.claim" / "lease.json").read_text() == before
