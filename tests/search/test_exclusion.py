"""Conflicts: what is blamed, what is excluded, what is acquitted."""

from __future__ import annotations

import dataclasses

import pytest
from surface import first_input, make_space

from engine.schema.base import Scalar
from engine.schema.trial import Candidate, FailureKind, OutcomeKind, TrialKind
from engine.search.candidates import taken_rows
from engine.search.exclusion import Exclusions, find_exclusions
from engine.search.lattice import Lattice, build_lattice
from engine.search.propose import propose
from engine.search.view import Observation, Proposal, SearchInput

KNOBS: dict[str, tuple[Scalar, ...]] = dict.fromkeys("abcdef", ("off", "on"))
SPACE = make_space(KNOBS)


def candidate(on: str) -> Candidate:
    """The knobs that are on."""
    return Candidate(configuration={name: "on" if name in on else "off" for name in KNOBS})


def seen(on: str, works: bool, number: int, **fields: object) -> Observation:
    """A trial that worked, or failed for a reason in its settings."""
    outcome: dict[str, object] = {"kind": OutcomeKind.COMPLETED, "log_speedup": 0.02 * len(on)}
    if not works:
        outcome = {"kind": OutcomeKind.FAILED, "failure": FailureKind.CONFIG_CONFLICT}
    return Observation.model_validate(
        {"candidate": candidate(on), "trial_id": f"t{number:03d}", "gpu_hours": 0.2, **outcome, **fields}
    )


def search_of(*trials: Observation) -> SearchInput:
    """A search over six switches."""
    search = first_input(make_space(), 0)
    baseline = seen("", True, 0, trial_kind=TrialKind.BASELINE)
    return dataclasses.replace(
        search,
        space=SPACE,
        observations=(baseline, *trials),
        memory_limit_gib=None,
        baseline_memory_gib=None,
    )


def excluded(search: SearchInput) -> set[str]:
    """The confirmed sets, as the knobs that are on."""
    lattice = build_lattice(search)
    return {"".join(_names(lattice, confirmed)) for confirmed in find_exclusions(search, lattice).confirmed}


def chance(search: SearchInput, on: str) -> float:
    """P(no conflict) of a candidate."""
    lattice = build_lattice(search)
    found: Exclusions = find_exclusions(search, lattice)
    return float(found.p_compatible(lattice.row(candidate(on))[None, :])[0])


def _names(lattice: Lattice, confirmed: frozenset[tuple[int, int]]) -> list[str]:
    return sorted(lattice.axes[column].name for column, level in confirmed if level)


def test_a_single_change_that_fails_is_excluded() -> None:
    """One change of the baseline fails: every candidate that holds it is out, all others are untouched."""
    search = search_of(seen("a", False, 1))
    assert excluded(search) == {"a"}
    assert chance(search, "ab") == 0.0
    assert chance(search, "bcdef") == 1.0


def test_several_changes_are_only_suspected() -> None:
    """Three changes fail together: each is less likely, none is excluded."""
    search = search_of(seen("abc", False, 1))
    assert excluded(search) == set()
    assert 0.0 < chance(search, "abc") < chance(search, "ab") < chance(search, "a") < 1.0
    assert chance(search, "def") == 1.0


def test_what_ran_is_acquitted() -> None:
    """Two of three suspects run without the third: the pair that never ran together takes the blame."""
    search = search_of(seen("abc", False, 1), seen("ab", True, 2), seen("c", True, 3), seen("bc", True, 4))
    assert chance(search, "ab") == 1.0
    assert chance(search, "bc") == 1.0
    assert chance(search, "ac") < 0.5


def test_a_pair_is_confirmed_by_tests_of_its_parts() -> None:
    """The pair alone fails, each part runs in every other context: exactly the pair is excluded."""
    search = search_of(
        seen("abcdef", False, 1, signature="clash"),
        seen("acdef", True, 2),
        seen("bcdef", True, 3),
        seen("ab", False, 4, signature="clash"),
    )
    assert excluded(search) == {"ab"}
    assert chance(search, "acdef") == 1.0
    assert chance(search, "bcdef") == 1.0


def test_the_order_of_trials_does_not_matter() -> None:
    """Exclusion is a function of the set of trials."""
    trials = (seen("abcd", False, 1), seen("acd", True, 2), seen("b", True, 3), seen("ab", False, 4))
    assert excluded(search_of(*trials)) == excluded(search_of(*trials[::-1]))
    assert chance(search_of(*trials), "abf") == chance(search_of(*trials[::-1]), "abf")


@pytest.mark.parametrize(
    ("kind", "failure"),
    [
        (OutcomeKind.VOID, FailureKind.INFRA),
        (OutcomeKind.CANCELLED, FailureKind.CONFIG_CONFLICT),
        (OutcomeKind.FAILED, FailureKind.PREEMPTED),
    ],
)
def test_infrastructure_blames_nobody(kind: OutcomeKind, failure: FailureKind) -> None:
    """A fault of the cluster raises no suspicion."""
    search = search_of(seen("a", False, 1, kind=kind, failure=failure))
    assert excluded(search) == set()
    assert chance(search, "a") == 1.0


def test_a_broken_invariant_counts_against_its_settings() -> None:
    """A rejected single change is as good as one that cannot run."""
    assert excluded(search_of(seen("a", True, 1, kind=OutcomeKind.REJECTED))) == {"a"}


def test_an_error_text_that_names_mechanisms_moves_the_blame() -> None:
    """Named mechanisms take most of the blame of a failure of many changes."""
    plain = search_of(seen("abcd", False, 1))
    named = search_of(seen("abcd", False, 1, implicated=("a", "b")))
    assert chance(named, "ab") < chance(plain, "ab")
    assert chance(named, "cd") > chance(plain, "cd")


def test_equal_signatures_share_a_cause() -> None:
    """The same error twice with one change in common blames that change more than two errors of their own."""
    same = search_of(seen("abc", False, 1, signature="s"), seen("ade", False, 2, signature="s"))
    other = search_of(seen("abc", False, 1, signature="s"), seen("ade", False, 2, signature="t"))
    assert chance(same, "a") < chance(other, "a")
    assert chance(same, "b") > chance(other, "b")


def conflict(on: str) -> bool:
    """The truth: a and b exclude each other."""
    return "a" in on and "b" in on


def test_the_search_finds_the_minimal_conflict_and_acquits_the_rest() -> None:
    """Every switch gains, two exclude each other: short runs find the pair and nothing else is excluded."""
    search, number = search_of(), 0
    search = dataclasses.replace(search, budget=search.budget.model_copy(update={"trials_left": 30}))
    kinds = []
    while number < 40 and isinstance(proposal := propose(search), Proposal):
        number += 1
        on = "".join(name for name, value in proposal.candidate.configuration.items() if value == "on")
        gain = {"log_speedup": 0.1 * len(on)} if proposal.kind is TrialKind.SEARCH else {"log_speedup": None}
        trial = seen(
            on,
            not conflict(on),
            number,
            trial_kind=proposal.kind,
            **({} if conflict(on) else gain),
            signature="clash" if conflict(on) else None,
        )
        kinds.append(proposal.kind)
        search = dataclasses.replace(search, observations=(*search.observations, trial))
        if excluded(search):
            break
    assert excluded(search) == {"ab"}
    assert TrialKind.RETEST in kinds
    assert chance(search, "acdef") == 1.0


def test_an_acquitted_single_change_is_searched_again() -> None:
    """A change that fails alone but runs beside a partner is excluded only without that partner."""
    alone = search_of(seen("a", False, 1))
    rescued = search_of(seen("a", False, 1), seen("ac", True, 2, trial_kind=TrialKind.RETEST))
    assert chance(alone, "acd") == 0.0
    assert chance(rescued, "acd") == 1.0
    assert chance(rescued, "ad") < 0.5


def test_a_slow_run_is_no_conflict_but_was_tried() -> None:
    """What was rejected for its steadiness alone blames no setting, and is not proposed again."""
    slow = seen("a", True, 1, kind=OutcomeKind.REJECTED, failure=FailureKind.SLOW)
    search = search_of(slow)
    assert excluded(search) == set()
    assert chance(search, "a") == 1.0
    lattice = build_lattice(search)
    assert lattice.row(candidate("a")).tolist() in taken_rows(search, lattice).tolist()
