"""The space of configurations of a task: parameters, derived values, constants, requirements."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping
from typing import Literal as OneOf

from engine.schema.base import Scalar
from engine.schema.task import Binding
from engine.task.bindings.access import Assignment, file_of
from engine.task.expression_syntax import ExpressionError
from engine.task.expressions import Expression, scalar_text
from engine.task.nearest import did_you_mean
from engine.task.place import Place
from engine.task.values import Literals, one_of

Configuration = Mapping[str, Scalar]


@dataclasses.dataclass(frozen=True)
class SearchParameter:
    """A parameter that is searched.

    literals maps each canonical value to what is written for it; `default` is the baseline's value;
    where `when` does not hold, only the default is meaningful.
    """

    mechanism: str
    values: tuple[Scalar, ...]
    initial: tuple[Scalar, ...]
    default: Scalar
    literals: Literals
    when: Expression | None
    bindings: tuple[Binding, ...]


@dataclasses.dataclass(frozen=True)
class DerivedParameter:
    """A parameter that is computed from others and written like them."""

    mechanism: str
    expression: Expression
    when: Expression | None
    bindings: tuple[Binding, ...]

    def compute(self, names: Configuration) -> Scalar:
        """The value.

        Raises:
            ExpressionError: it cannot be computed; the message has the whole equation.
        """
        try:
            return self.expression.evaluate(names)
        except ExpressionError as error:
            raise ExpressionError(
                f"{self._equation(names)}: {error.message}", rule=error.rule, hint=error.hint
            ) from error

    def changes_batch(self, names: Configuration) -> str | None:
        """Why the value would change the global batch that it is computed from, or None."""
        expression = self.expression
        if self.mechanism not in names or not expression.names & {"global_batch", "global_batch_size"}:
            return None
        rest = expression.inexact_division(names)
        if rest is not None:
            return f"{self._equation(names)}: {rest} leaves a remainder, so the global batch would change"
        value = names[self.mechanism]
        if isinstance(value, int | float) and value < 1:
            return f"{self._equation(names)} = {scalar_text(value)}, below 1"
        return None

    def _equation(self, names: Configuration) -> str:
        return f"{self.mechanism} = {self.expression.text} = {self.expression.with_numbers(names)}"


@dataclasses.dataclass(frozen=True)
class ParameterSpace:
    """All parameters of a task.

    constants holds world_size, nodes and gpus_per_node, and global_batch where it is known and no parameter.
    order lists every mechanism after those that its expressions use.
    """

    parameters: tuple[SearchParameter, ...]
    derived: tuple[DerivedParameter, ...]
    constants: dict[str, int]
    requirements: tuple[Expression, ...]
    order: tuple[str, ...]
    file: str

    @functools.cached_property
    def by_mechanism(self) -> dict[str, SearchParameter]:
        """The searched parameters by mechanism."""
        return {parameter.mechanism: parameter for parameter in self.parameters}

    @functools.cached_property
    def _derived_by_mechanism(self) -> dict[str, DerivedParameter]:
        return {entry.mechanism: entry for entry in self.derived}

    @property
    def global_batch(self) -> int | None:
        """Samples per update, None where nothing tells."""
        for name in ("global_batch", "global_batch_size"):
            value = self.constants.get(name, self.baseline().get(name))
            if isinstance(value, int) and not isinstance(value, bool):
                return value
        return None

    def baseline(self) -> dict[str, Scalar]:
        """The unchanged project: every searched parameter at its default."""
        return {parameter.mechanism: parameter.default for parameter in self.parameters}

    def size(self, values: OneOf["initial", "all"] = "all") -> int:
        """Number of configurations, requirements not applied."""
        return math.prod(
            len(parameter.initial if values == "initial" else parameter.values)
            for parameter in self.parameters
        )

    def canonical(self, mechanism: str, text: Scalar) -> Scalar:
        """The canonical value that a text (or value) means for a mechanism.

        Raises:
            TaskFileError: no such parameter, a derived one, or not one of its values; with the nearest.
        """
        parameters = self.by_mechanism
        known = parameters.get(mechanism)
        if known is not None and any(text == value and type(text) is type(value) for value in known.values):
            return text
        place = Place(self.file).at("parameters", mechanism)
        if any(entry.mechanism == mechanism for entry in self.derived):
            raise place.error("computed, cannot be set", value=text, rule="a searched parameter")
        if mechanism not in parameters:
            raise place.error(
                f"no parameter {mechanism!r}",
                value=mechanism,
                rule="a mechanism of [[parameters]]",
                hint=did_you_mean(mechanism, parameters),
            )
        return one_of(text, parameters[mechanism].values, place)

    def complete(self, configuration: Configuration) -> dict[str, Scalar]:
        """Canonical values for every parameter; those that are not given are at their default.

        Raises:
            TaskFileError: an unknown parameter or value.
        """
        given = {name: self.canonical(name, value) for name, value in configuration.items()}
        return self.baseline() | given

    def normalise(self, configuration: Configuration) -> dict[str, Scalar]:
        """The configuration with every parameter whose `when` does not hold at its default.

        Configurations that run the same have the same normal form.

        Raises:
            ExpressionError: a `when` cannot be computed.
        """
        names = self.names(self.complete(configuration))
        return {parameter.mechanism: names[parameter.mechanism] for parameter in self.parameters}

    def active(self, configuration: Configuration) -> frozenset[str]:
        """The searched mechanisms that matter: their `when` holds, or they have none."""
        names = self.names(self.complete(configuration))
        return frozenset(
            parameter.mechanism
            for parameter in self.parameters
            if parameter.when is None or parameter.when.holds(names)
        )

    def resolve(self, configuration: Configuration) -> dict[str, Scalar]:
        """Every value of a configuration as it will run, derived ones included.

        Raises:
            ExpressionError: a derived value cannot be computed.
        """
        names = self.names(self.complete(configuration))
        return {name: value for name, value in names.items() if name not in self.constants}

    def violations(self, configuration: Configuration) -> list[str]:
        """The requirements that do not hold, each with the whole equation and its numbers; empty: feasible.

        A derived value that uses global_batch must divide exactly and be at least 1: anything else would
        change how many samples an update sees.
        """
        try:
            names = self.names(self.complete(configuration))
        except ExpressionError as error:
            return [error.message]
        broken = [text for entry in self.derived if (text := entry.changes_batch(names))]
        for requirement in self.requirements:
            try:
                holds = requirement.holds(names)
            except ExpressionError as error:
                broken.append(f"{requirement.text}: {requirement.with_numbers(names)}: {error.message}")
                continue
            if not holds:
                broken.append(f"{requirement.text} does not hold: {requirement.with_numbers(names)}")
        return broken

    def assignments(self, configuration: Configuration) -> list[Assignment]:
        """What to write for a configuration, in the order of the task file's parameters.

        Raises:
            ExpressionError: a derived value cannot be computed.
        """
        values = self.resolve(configuration)
        searched = [
            Assignment(binding, parameter.literals[values[parameter.mechanism]])
            for parameter in self.parameters
            for binding in parameter.bindings
        ]
        derived = [
            Assignment(binding, values[entry.mechanism])
            for entry in self.derived
            if entry.mechanism in values
            for binding in entry.bindings
        ]
        return searched + derived

    def bound_files(self) -> tuple[str, ...]:
        """The project files that configurations are written to, without repeats."""
        entries: list[SearchParameter | DerivedParameter] = [*self.parameters, *self.derived]
        files = [file_of(binding) for entry in entries for binding in entry.bindings]
        return tuple(dict.fromkeys(file for file in files if file is not None))

    def names(self, configuration: Configuration, *, lenient: bool = False) -> dict[str, Scalar]:
        """Everything that expressions can use: constants, parameters in normal form, derived values.

        A derived parameter whose `when` does not hold is left out.

        Args:
            configuration: A value for every searched parameter.
            lenient: Leave out what cannot be computed instead of raising.

        Raises:
            ExpressionError: a `when` or a derived value cannot be computed.
        """
        names: dict[str, Scalar] = dict(self.constants)
        searched = self.by_mechanism
        derived = self._derived_by_mechanism
        for mechanism in self.order:
            entry = searched.get(mechanism) or derived[mechanism]
            try:
                holds = entry.when is None or entry.when.holds(names)
                if isinstance(entry, SearchParameter):
                    names[mechanism] = configuration[mechanism] if holds else entry.default
                elif holds:
                    names[mechanism] = entry.compute(names)
            except ExpressionError:
                if not lenient:
                    raise
        return names
