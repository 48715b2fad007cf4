"""Which configurations are measured, and in which order."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from typing import Any

from recording.recorder import Measurement, Recorder
from recording.sample import Configuration, key_of

ANCHOR_EVERY = 10
REPEATED = 10


class Plan:
    """Baseline and single changes; then random ones in turn with steps from the best; then its neighbours."""

    def __init__(self, recorder: Recorder, wanted: int, seed: int) -> None:
        self.recorder, self.sample, self.wanted = recorder, recorder.sample, wanted
        self.random = random.Random(
            f"{seed} {len(recorder.measurements)}"
        )  # a continued recording draws anew

    def configurations(self) -> Iterator[tuple[Configuration, str]]:
        """Configurations not measured yet, each with its purpose."""
        baseline = self.sample.baseline()
        for configuration in self.unseen([baseline, *self.sample.neighbours(baseline)]):
            yield configuration, "single"
        while self.missing() > self.wanted // 4:
            around = self.unseen(self.sample.neighbours(self.best()))
            if around and self.random.random() < 0.4:
                yield self.random.choice(around), "ascent"
            else:
                yield from ((configuration, "random") for configuration in self.unseen([self.draw()]))
        while around := self.unseen(self.sample.neighbours(self.best())):
            yield self.random.choice(around), "ascent"
        while self.missing() > 0:
            yield from ((configuration, "random") for configuration in self.unseen([self.draw()]))

    def seen(self) -> set[str]:
        return {key_of(m["configuration"]) for m in self.recorder.measurements}

    def missing(self) -> int:
        return self.wanted - len(self.seen())

    def unseen(self, candidates: list[Configuration]) -> list[Configuration]:
        seen = self.seen()
        return [candidate for candidate in candidates if key_of(candidate) not in seen]

    def best(self) -> Configuration:
        fastest: Configuration = fastest_first(self.recorder)[0]["configuration"]
        return fastest

    def draw(self) -> Configuration:
        """A random configuration; values that fail alone and compilation (slow to start) are drawn less."""
        doubtful, configuration = self.doubtful(), dict[str, Any]()
        for name in self.sample.baseline():
            values = list(self.sample.literals(name))
            weights = [0.1 if (name, value) in doubtful else 1.0 for value in values]
            if name == "compile_scope":
                weights = [2.0 if value == "off" else 0.4 for value in values]
            configuration[name] = self.random.choices(values, weights)[0]
        return self.sample.normal_form(configuration)

    def doubtful(self) -> set[tuple[str, Any]]:
        """(parameter, value) that failed as the only change."""
        baseline, result = self.sample.baseline(), set[tuple[str, Any]]()
        for measurement in self.recorder.measurements:
            changed = [item for item in measurement["configuration"].items() if item[1] != baseline[item[0]]]
            if len(changed) == 1 and measurement["status"] != "ok":
                result.add(changed[0])
        return result


def fastest_first(recorder: Recorder) -> list[Measurement]:
    """Successful measurements by CPU time per update, the quantity least disturbed by other load."""
    fine = [m for m in recorder.measurements if m["status"] == "ok"]
    return sorted(fine, key=lambda m: float(m["cpu_s_per_update"]))


def record(recorder: Recorder, wanted: int, seed: int, minutes: float | None) -> None:
    """Measure until enough configurations are known or time is over; then the fastest ones twice more."""
    end = time.monotonic() + 60 * minutes if minutes else float("inf")
    baseline = recorder.sample.baseline()
    for count, (configuration, purpose) in enumerate(Plan(recorder, wanted, seed).configurations()):
        if time.monotonic() > end:
            return
        if count % ANCHOR_EVERY == 0:
            show(recorder.run(baseline, "anchor"), baseline)
        show(recorder.run(configuration, purpose), baseline)
    fastest = {key_of(m["configuration"]): m["configuration"] for m in fastest_first(recorder)}
    for configuration in list(fastest.values())[:REPEATED] * 2:
        if time.monotonic() < end:
            show(recorder.run(configuration, "repeat"), baseline)
    show(recorder.run(baseline, "anchor"), baseline)


def show(row: Measurement, baseline: Configuration) -> None:
    """One line per measurement."""
    changes = " ".join(f"{k}={v}" for k, v in row["configuration"].items() if v != baseline[k]) or "baseline"
    result = row["message"][:80]
    if row["status"] == "ok":
        result = f"{row['step_s']:.3f} s/update, {row['cpu_s_per_update']:.3f} CPU s"
    head = f"{row['purpose']:7} {row['status']:8} {row['peak_mem_gib']:.3f} GiB  took {row['cost_s']:5.1f} s"
    print(f"{head}  {changes}: {result}", flush=True)
