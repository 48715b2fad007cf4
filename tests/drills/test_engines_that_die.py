"""Engines that are killed, doubled, or left without disk."""

from __future__ import annotations

import contextlib
import json
import random
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.schema.study import Stage
from engine.schema.trial import OutcomeKind
from tests.drills.conftest import NewStudy
from tests.drills.drilled import DrilledStudy, Engine
from tests.drills.ending import assert_nothing_lost, job_runs
from tests.slurm.trial_folder import read_json, wait_for

_KILLS = 20
_STUDY_MIB = 24
_MEASURED = ("completed", "rejected", "failed")


def _held(drilled: DrilledStudy, command: str = "diagnose") -> tuple[Engine, str]:
    drilled.hold_next()
    engine = drilled.start(command)
    held = drilled.until_held()
    drilled.until_submitted(held)
    return engine, held


def test_e38_second_engine_is_refused(plain: NewStudy) -> None:
    """Beside a running engine a second one changes nothing and says who works on the study."""
    drilled = plain()
    first, _ = _held(drilled)
    second = drilled.resume().wait()
    assert (second.code, second.value["error"]["kind"]) == (3, "study_busy")
    assert str(first.process.pid) in second.value["error"]["message"]
    watcher = drilled.command("resume", str(drilled.study), json_wanted=False)
    wait_for(lambda: "only watches" in watcher.narration, "the third one watches")
    drilled.release()
    assert first.wait().code == 0
    watcher.wait()
    assert_nothing_lost(drilled)


@pytest.mark.drill
def test_e38_engine_that_was_thought_dead(plain: NewStudy) -> None:
    """An engine of another machine that stood still and was replaced gives up, and ends nothing."""
    drilled = plain(budget__trials=1)
    first, held = _held(drilled)
    first.send(signal.SIGSTOP)
    lease = max(drilled.folder.journal.glob("*.claim")) / "lease.json"
    stale = {"host": "elsewhere", "at": time.time() - 600.0}
    lease.write_text(json.dumps({**read_json(lease), **stale}))
    second = drilled.command("search", str(drilled.study))
    wait_for(lambda: drilled.state().epochs == 2, "the second engine took over")
    first.send(signal.SIGCONT)
    answer = first.wait()
    assert (answer.code, answer.value["error"]["kind"]) == (3, "study_busy")
    drilled.release()
    assert second.wait().code == 0
    assert_nothing_lost(drilled, {held: "completed"}, others=_MEASURED, stage=Stage.SEARCH)


@pytest.mark.drill
def test_e03_engine_killed_while_it_submits(stage: NewStudy) -> None:
    """Killed between the call of sbatch and its answer, the next engine finds the job by its name."""
    drilled = stage(budget__trials=1)
    kill = 'if mkdir "$here/once" 2>/dev/null; then "$real" "$@" >/dev/null; kill -9 $PPID; exit 0; fi'
    drilled.replace_program("sbatch", f'{kill}\nexec "$real" "$@"')
    first = drilled.start()
    assert first.wait().code == -signal.SIGKILL
    assert drilled.trial("b001").handle is None
    assert drilled.command("search", str(drilled.study)).wait(120.0).code == 0
    assert_nothing_lost(drilled, {"b001": "completed"}, others=_MEASURED, stage=Stage.SEARCH)


@pytest.mark.drill
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", [7])
def test_e36_engine_killed_at_random_moments(plain: NewStudy, seed: int) -> None:
    """Twenty SIGKILLs at moments drawn by a seed: the study ends, no trial is lost and none has two jobs."""
    drilled = plain(budget__trials=6, pace__step_ms=200)
    moments = random.Random(seed)
    engine = drilled.start("run")
    wait_for(lambda: drilled.study.exists() and drilled.entries(), "the study has begun")
    for kill in range(_KILLS):
        wait_for(lambda epochs=kill + 1: drilled.state().epochs == epochs, f"engine {kill} has begun", 60.0)
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = engine.process.wait(timeout=moments.uniform(0.0, 3.0))
            raise AssertionError(f"ended with {code} before kill {kill}: {engine.narration[-2000:]}")
        engine.kill()
        engine = drilled.resume()
    assert engine.wait(400.0).code in (0, 1)
    state = assert_nothing_lost(drilled, others=(*_MEASURED, "void"), stage=Stage.DONE)
    assert state.epochs == _KILLS + 1
    for name, trial in state.trials.items():
        if trial.outcome is not None and trial.outcome.kind is OutcomeKind.VOID:
            assert not job_runs(drilled, name), f"{name}: the work of a job was thrown away"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of a few MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={_STUDY_MIB}m", "none", str(folder)]
    subprocess.run(mount, check=True, capture_output=True, timeout=20)
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True, capture_output=True, timeout=20)


def _fill(folder: Path) -> Path:
    """Take all the space that is left."""
    filler = folder / "filler"
    with filler.open("wb", buffering=0) as stream, contextlib.suppress(OSError):
        while True:
            stream.write(b"\0" * (1 << 16))
    with filler.open("ab", buffering=0) as stream, contextlib.suppress(OSError):
        while True:
            stream.write(b"\0" * 64)
    return filler


@pytest.mark.drill
def test_disk_that_is_full(small_disk: Path, plain: NewStudy) -> None:
    """A disk that fills up in a run ends the engine with its reason; with space again the study goes on."""
    drilled = plain(budget__trials=1)
    drilled.study = small_disk / "study"
    engine, held = _held(drilled)
    filler = _fill(small_disk)
    drilled.release()
    answer = engine.wait(120.0)
    assert answer.code == 3
    assert answer.value["error"]["kind"] in ("disk_full", "infrastructure")
    filler.unlink()
    assert drilled.command("search", str(drilled.study)).wait(200.0).code == 0
    outcome = drilled.trial(held).outcome
    assert outcome is not None
    assert outcome.kind.value in ("void", "completed")
    assert_nothing_lost(
        drilled, {held: outcome.kind.value}, others=_MEASURED, stage=Stage.SEARCH, slack_s=15.0
    )
