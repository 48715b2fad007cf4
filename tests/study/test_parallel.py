"""Several search trials at once: never too many, never twice, settled in any order, ended together."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from engine.errors import InfrastructureError
from engine.journal.log import read_entries
from engine.journal.requests import post_request
from engine.journal.session import Detached, StopRequested
from engine.journal.state import StudyState
from engine.journal.summary import gpu_hours, verified_verdict
from engine.schema.study import Entry, Stage, TrialFinished
from engine.schema.trial import OutcomeKind, TrialKind
from engine.search.view import SearchInput
from engine.stages.search import parallel_slots
from engine.stages.search_input import search_input
from engine.study import run_study
from tests.study.simulated import Death, SimulatedExecutor
from tests.study.studies import Cluster, engine, read, searched
from tests.study.surface import task_text

SLOTS = 3
SEARCH = (TrialKind.SEARCH, TrialKind.RETEST)


def _task(slots: int = SLOTS, mode: str = "per-trial") -> str:
    return task_text(extra=f'[slurm]\nparallel_trials = {slots}\nmode = "{mode}"')


def _cluster(folder: Path) -> Cluster:
    return Cluster(folder, task=_task())


class Watcher:
    """Notes the greatest number of open trials by kind, and the order of ends."""

    def __init__(self) -> None:
        self.most: Counter[TrialKind] = Counter()
        self.ends: list[str] = []

    def __call__(self, entry: Entry, state: StudyState) -> None:
        opened = Counter(trial.proposed.kind for trial in state.open_trials())
        self.most |= opened
        if isinstance(entry.data, TrialFinished):
            self.ends.append(entry.data.trial_id)


def _when_open(cluster: Cluster, count: int, act: Callable[[], None]) -> Callable[[str, str], None]:
    """A hook that acts once, at the first look at a search trial while so many are open."""
    done: list[str] = []

    def hook(call: str, trial_id: str) -> None:
        opened = [trial for trial in read(cluster.root).open_trials() if trial.proposed.kind in SEARCH]
        if call == "poll" and trial_id[0] == "t" and len(opened) == count and not done:
            done.append(trial_id)
            act()

    return hook


def test_the_slots_are_used_and_never_exceeded(tmp_path: Path) -> None:
    """Three search trials run at once and never a fourth; baselines and verification runs stay alone."""
    cluster, watcher = _cluster(tmp_path), Watcher()
    cluster.start(trials=12)
    state = cluster.go(watcher)
    assert state.stage is Stage.DONE
    assert watcher.most[TrialKind.SEARCH] == SLOTS
    assert all(watcher.most[kind] == 1 for kind in (TrialKind.BASELINE, TrialKind.VERIFICATION))
    assert watcher.most[TrialKind.RETEST] <= 1


def test_a_parallel_search_finds_what_a_sequential_one_finds(tmp_path: Path) -> None:
    """With as many trials the verified winner is close to the best deployable configuration."""
    cluster = _cluster(tmp_path)
    state = cluster.run(trials=18)
    verdict = verified_verdict(state)
    assert verdict is not None
    truth = math.exp(cluster.surface.log_speedup(verdict.candidate.configuration))
    assert truth >= 0.93 * cluster.surface.optimum()


def test_trials_in_flight_count_against_the_number_of_trials(tmp_path: Path) -> None:
    """The number of trials is met exactly, though the last ones are proposed before others have ended."""
    state = _cluster(tmp_path).run(trials=8)
    assert len(searched(state)) == 8


def test_trials_in_flight_count_against_the_gpu_hours(tmp_path: Path) -> None:
    """The overshoot is that of one trial, not of one a slot."""
    state = _cluster(tmp_path).run(trials=None, gpu_hours=0.1)
    spent = gpu_hours(state)
    before = spent["total"] - spent["verification"]
    dearest = max(trial.outcome.gpu_hours for trial in searched(state) if trial.outcome)
    assert 0.075 - dearest <= before <= 0.075 + dearest


def test_no_candidate_runs_beside_itself(tmp_path: Path) -> None:
    """What is in flight is known to the search: no candidate is run twice, repetitions apart."""
    state = _cluster(tmp_path).run(trials=15)
    keys = [trial.proposed.candidate.key() for trial in state.of_kind(*SEARCH)]
    assert len(keys) == len(set(keys))


def test_trials_in_flight_are_shown_to_the_models(tmp_path: Path) -> None:
    """A decision sees the candidates in flight, and a budget that holds them already."""
    cluster = _cluster(tmp_path)
    cluster.start(trials=10)
    seen: list[SearchInput] = []
    with engine(cluster.root, cluster.executor, cluster.clock) as study:
        cluster.executor.hook = _when_open(cluster, SLOTS, lambda: seen.append(search_input(study)))
        run_study(study)
        done = len([trial for trial in study.state.trials.values() if trial.proposed.kind in SEARCH])
    (search,) = seen
    assert len(search.pending) == SLOTS
    assert search.budget.trials_left == 10 - SLOTS - len(search.searched)
    assert done >= 10


def test_trials_end_in_any_order(tmp_path: Path) -> None:
    """A slow trial does not hold up the slots beside it, and each end is recorded once."""
    cluster, watcher = _cluster(tmp_path), Watcher()
    cluster.executor.shapes = lambda trial_id, run: (
        dataclasses.replace(run, step_times_s=[20.0 * each for each in run.step_times_s])
        if trial_id == "t002"
        else run
    )
    cluster.start(trials=9)
    cluster.go(watcher)
    ends = [trial_id for trial_id in watcher.ends if trial_id[0] == "t"]
    assert ends.index("t002") > ends.index("t004")
    assert len(watcher.ends) == len(set(watcher.ends))


def test_a_stop_ends_every_trial_in_flight(tmp_path: Path) -> None:
    """All jobs are cancelled and recorded so; the resumed study runs as many trials as were asked for."""
    cluster = _cluster(tmp_path)
    stop = _when_open(cluster, SLOTS, lambda: post_request(cluster.root / "requests", "stop", "enough"))
    cluster.executor.hook = stop
    cluster.start(trials=6)
    with pytest.raises(StopRequested):
        cluster.go()
    state = read(cluster.root)
    assert (state.stage, state.note) == (Stage.STOPPED, "enough")
    assert len(cluster.executor.cancelled) == SLOTS
    assert not state.open_trials()
    kinds = [state.trials[name].outcome for name in cluster.executor.cancelled]
    assert all(outcome is not None and outcome.kind is OutcomeKind.CANCELLED for outcome in kinds)
    resumed = cluster.go()
    assert resumed.stage is Stage.DONE
    assert len(resumed.counted(TrialKind.SEARCH)) == 6


def test_an_interrupt_at_the_third_submission_ends_the_others_too(tmp_path: Path) -> None:
    """Ctrl-C while a job is handed over cancels those that run already."""
    cluster = _cluster(tmp_path)

    def interrupt(call: str, trial_id: str) -> None:
        if (call, trial_id) == ("submitted", "t003"):
            cluster.executor.hook = lambda call, trial_id: None
            raise KeyboardInterrupt

    cluster.executor.hook = interrupt
    cluster.start(trials=6)
    with pytest.raises(KeyboardInterrupt):
        cluster.go()
    assert sorted(cluster.executor.cancelled) == ["t001", "t002", "t003"]
    assert not read(cluster.root).open_trials()


@pytest.mark.parametrize("moment", ["poll", "submit", "submitted"])
def test_a_dead_engine_leaves_its_trials_to_the_next(tmp_path: Path, moment: str) -> None:
    """All open trials are adopted: no job is submitted twice, no outcome is lost or counted twice."""
    cluster = _cluster(tmp_path)

    def die(call: str, trial_id: str) -> None:
        if call == moment and trial_id == "t005":
            cluster.executor.hook = lambda call, trial_id: None
            raise Death

    cluster.executor.hook = die
    cluster.start(trials=9)
    with pytest.raises(Death):
        cluster.go()
    assert len(read(cluster.root).open_trials()) >= 2
    watcher = Watcher()
    state = cluster.go(watcher)
    assert state.stage is Stage.DONE
    assert watcher.most[TrialKind.SEARCH] <= SLOTS
    assert set(Counter(cluster.executor.submitted).values()) == {1}
    ends = Counter(
        entry.data.trial_id
        for entry in read_entries(cluster.root / "journal")
        if isinstance(entry.data, TrialFinished)
    )
    assert set(ends.values()) == {1}
    assert set(ends) == set(state.trials)
    assert len(state.counted(TrialKind.SEARCH)) == 9


class Counting(SimulatedExecutor):
    """Counts how often held allocations were given back."""

    released = 0

    def release(self) -> None:
        """Count."""
        self.released += 1


def test_a_detached_engine_leaves_its_jobs(tmp_path: Path) -> None:
    """Nothing is cancelled, recorded as ended or given back; the next engine adopts what runs on."""
    cluster = _cluster(tmp_path)
    executor = Counting(cluster.surface, cluster.clock)
    cluster.executor = executor
    cluster.start(trials=6)
    with engine(cluster.root, executor, cluster.clock) as study:
        executor.hook = _when_open(cluster, SLOTS, study.session.detach)
        with pytest.raises(Detached):
            run_study(study)
    state = read(cluster.root)
    assert len(state.open_trials()) == SLOTS
    assert state.stage is Stage.SEARCH
    assert (executor.cancelled, executor.released) == ([], 0)
    executor.hook = lambda call, trial_id: None
    resumed = cluster.go()
    assert resumed.stage is Stage.DONE
    assert set(Counter(executor.submitted).values()) == {1}
    assert len(resumed.counted(TrialKind.SEARCH)) == 6
    assert executor.released >= 1


def test_a_broken_trial_is_repeated_beside_the_others(tmp_path: Path) -> None:
    """A lost job is run again in its own slot, as often as without others."""
    cluster, watcher = _cluster(tmp_path), Watcher()
    cluster.executor.lost = lambda trial_id: trial_id == "t002"
    cluster.start(trials=6)
    state = cluster.go(watcher)
    again = [trial for trial in state.trials.values() if trial.proposed.retry_of == "t002"]
    assert [trial.proposed.candidate for trial in again] == [state.trials["t002"].proposed.candidate]
    assert watcher.most[TrialKind.SEARCH] == SLOTS
    assert len(state.counted(TrialKind.SEARCH)) == 6


def test_the_others_are_waited_for_when_one_breaks_for_good(tmp_path: Path) -> None:
    """Three voids of one candidate end the study only after the trials beside it have their outcome."""
    cluster = _cluster(tmp_path)
    lost: list[str] = []

    def is_lost(trial_id: str) -> bool:
        trial = read(cluster.root).trials[trial_id]
        if trial_id == "t002" or trial.proposed.retry_of in lost:
            lost.append(trial_id)
        return trial_id in lost

    cluster.executor.lost = is_lost
    cluster.start(trials=9)
    with pytest.raises(InfrastructureError, match=r"was broken 3 times"):
        cluster.go()
    state = read(cluster.root)
    assert state.stage is Stage.FAILED
    assert len(lost) == 3
    assert not state.open_trials()
    cluster.executor.lost = lambda trial_id: False
    assert len(cluster.go().counted(TrialKind.SEARCH)) == 9


def test_an_unclear_failure_is_repeated_after_a_death(tmp_path: Path) -> None:
    """A hang whose repetition the engine did not live to propose is repeated by the next one, once."""
    cluster = _cluster(tmp_path)
    cluster.executor.endings = lambda trial_id: "update_timeout" if trial_id == "t002" else "exited"

    def die(entry: Entry, _state: StudyState) -> None:
        if isinstance(entry.data, TrialFinished) and entry.data.trial_id == "t002":
            raise Death

    cluster.start(trials=6)
    with pytest.raises(Death):
        cluster.go(die)
    state = cluster.go()
    again = [trial for trial in state.trials.values() if trial.proposed.retry_of == "t002"]
    assert len(again) == 1
    assert len(state.counted(TrialKind.SEARCH)) == 6


@pytest.mark.parametrize(
    ("executor", "mode", "slots"),
    [("simulated", "per-trial", SLOTS), ("simulated", "held", 1), ("local", "per-trial", 1)],
)
def test_one_machine_and_one_allocation_have_one_slot(
    tmp_path: Path, executor: str, mode: str, slots: int
) -> None:
    """Trials side by side would disturb each other where they share the hardware."""
    cluster = Cluster(tmp_path, task=_task(mode=mode))
    cluster.start(executor=executor)
    with engine(cluster.root, cluster.executor, cluster.clock) as study:
        assert parallel_slots(study) == slots


def test_verification_stays_on_the_nodes_of_its_first_run(tmp_path: Path) -> None:
    """Pairs compare on equal nodes; a node that breaks a run is left, and the rest follows."""
    cluster = _cluster(tmp_path)

    def nodes(trial_id: str) -> tuple[str, ...]:
        return ("n2",) if trial_id >= "v004" else ("n1",)

    cluster.executor.shapes = lambda trial_id, run: (
        dataclasses.replace(run, nodes=nodes(trial_id)) if trial_id[0] == "v" else run
    )
    cluster.executor.lost = lambda trial_id: trial_id == "v003"
    state = cluster.run(trials=9)
    asked = {
        request.trial_id: request.nodelist
        for request in cluster.executor.requests
        if request.trial_id[0] == "v"
    }
    assert asked["v001"] == ()
    assert asked["v002"] == ("n1",)
    assert asked["v003"] == ("n1",)
    assert state.trials["v004"].proposed.retry_of == "v003"
    assert asked["v004"] == ()
    assert {asked[name] for name in asked if name > "v004"} == {("n2",)}
    others = [request for request in cluster.executor.requests if request.trial_id[0] != "v"]
    assert all(request.nodelist == () for request in others)
