"""Which combinations the mechanism table itself speaks against. Hints for a suggestion, not exclusions."""

from __future__ import annotations

import re
from collections.abc import Mapping

from engine.mechanisms.record import Mechanism, canonical_text
from engine.schema.base import Scalar

_REQUIREMENT = re.compile(r"^mech:(?P<id>\w+)(?P<relation>!=|>=|=|>| in )(?P<value>\[[\w,]+\]|[\w.]+)")
_WORDS = re.compile(r"[\w.-]+")
_SPELLINGS = {"true": ("true", "on"), "false": ("false",)}


def unmet_requirements(mechanism: Mechanism, configuration: Mapping[str, Scalar]) -> list[str]:
    """Requirements on other mechanisms of the configuration that do not hold.

    A mechanism that the configuration does not name is taken to be as required.
    """
    unmet = []
    for requirement in mechanism.requires:
        match = _REQUIREMENT.match(requirement)
        if match is None or match["id"] not in configuration:
            continue
        if not _holds(configuration[match["id"]], match["relation"].strip(), match["value"]):
            unmet.append(requirement)
    return unmet


def clashes(mechanisms: Mapping[str, Mechanism], configuration: Mapping[str, Scalar]) -> list[str]:
    """Conflicts of the table that the words of both sides seem to describe, each as `a with b: reason`.

    A side whose words name values of its mechanism is met by these values only, else by every value that is
    not the default; at least one side must name its value.
    """
    found = []
    for name, value in configuration.items():
        mechanism = mechanisms.get(name)
        for conflict in mechanism.conflicts if mechanism is not None else ():
            other = mechanisms[conflict.mechanism]
            if mechanism is None or conflict.mechanism not in configuration:
                continue
            words = set(_WORDS.findall(conflict.when.replace("/", " ")))
            ours = _met(mechanism, value, words)
            theirs = _met(other, configuration[conflict.mechanism], words)
            if ours and theirs and "named" in (ours, theirs):
                found.append(f"{name} with {conflict.mechanism}: {conflict.reason}")
    return found


def _met(mechanism: Mechanism, value: Scalar, words: set[str]) -> str | None:
    named = {text for text in map(canonical_text, mechanism.values) if words & set(_spellings(text))}
    if named:
        return "named" if canonical_text(value) in named else None
    return "assumed" if value != mechanism.default else None


def _spellings(text: str) -> tuple[str, ...]:
    return _SPELLINGS.get(text, () if text.isdigit() else (text,))


def _holds(actual: Scalar, relation: str, wanted: str) -> bool:
    if relation == "in":
        return canonical_text(actual) in wanted.strip("[]").split(",")
    if relation in ("=", "!="):
        return (canonical_text(actual) == wanted) == (relation == "=")
    if isinstance(actual, bool | str) or not wanted.isdigit():
        return True
    return actual > int(wanted) if relation == ">" else actual >= int(wanted)
