"""From [[parameters]] to the parameter space, checked against the project."""

from __future__ import annotations

from collections.abc import Mapping

from engine.schema.base import Scalar
from engine.schema.task import EnvBinding, FileBinding, Parameter, TaskFile
from engine.task.baseline import Project, check_derived, check_exists, default_value
from engine.task.bindings.access import read_value
from engine.task.expression_rules import check_kinds, evaluation_order, read_expression
from engine.task.expression_syntax import ExpressionError
from engine.task.expressions import Expression, as_number
from engine.task.global_batch import find_global_batch
from engine.task.parameter_rules import check_bindings, check_entries
from engine.task.place import Place
from engine.task.space import DerivedParameter, ParameterSpace, SearchParameter
from engine.task.values import Literals, read_values, subset

Entries = list[tuple[Parameter, Place]]


def build_space(settings: TaskFile, project: Project, place: Place) -> tuple[ParameterSpace, list[str]]:
    """Build the space of a task and check it against the project.

    Returns:
        The space, and warnings.

    Raises:
        TaskFileError: the first rule that is broken.
    """
    entries = [(entry, place.at("parameters", index)) for index, entry in enumerate(settings.parameters)]
    check_entries(entries)
    literals = {
        entry.mechanism: read_values(entry.values, here.at("values"))
        for entry, here in entries
        if entry.values is not None
    }
    initial = {
        entry.mechanism: subset(entry.initial, literals[entry.mechanism], here.at("initial"))
        for entry, here in entries
        if entry.initial is not None
    }
    check_bindings(entries, literals)
    defaults = {
        entry.mechanism: default_value(entry, literals[entry.mechanism], project, here)
        for entry, here in entries
        if entry.mechanism in literals
    }
    for entry, here in entries:
        for index, binding in enumerate(entry.bindings if entry.derived is not None else ()):
            check_exists(binding, project, here.at("bindings", index))
    constants, warnings = _constants(settings, project, defaults)
    when = _expressions(entries, constants, "when")
    derived = _expressions(entries, constants, "derived")
    known = [entry.mechanism for entry, _ in entries]
    required = [place.at("constraints", "require", i) for i in range(len(settings.constraints.require))]
    requirements = [
        read_expression(text, here, known, constants)
        for text, here in zip(settings.constraints.require, required, strict=True)
    ]
    uses = {name: _names(when.get(name)) | _names(derived.get(name)) for name in known}
    space = ParameterSpace(
        parameters=_searched(entries, literals, initial, defaults, when),
        derived=tuple(
            DerivedParameter(
                entry.mechanism, derived[entry.mechanism], when.get(entry.mechanism), tuple(entry.bindings)
            )
            for entry, _ in entries
            if entry.mechanism in derived
        ),
        constants=constants,
        requirements=tuple(requirements),
        order=evaluation_order(uses, {entry.mechanism: here for entry, here in entries}),
        file=place.file,
    )
    _check_at_baseline(space, entries, project, required)
    return space, warnings


def _searched(
    entries: Entries,
    literals: Mapping[str, Literals],
    initial: Mapping[str, tuple[Scalar, ...]],
    defaults: Mapping[str, Scalar],
    when: Mapping[str, Expression],
) -> tuple[SearchParameter, ...]:
    return tuple(
        SearchParameter(
            mechanism=name,
            values=tuple(literals[name]),
            initial=initial.get(name, tuple(literals[name])),
            default=defaults[name],
            literals=literals[name],
            when=when.get(name),
            bindings=tuple(entry.bindings),
        )
        for entry, _ in entries
        if (name := entry.mechanism) in literals
    )


def _expressions(entries: Entries, constants: Mapping[str, int], key: str) -> dict[str, Expression]:
    """The `when` or `derived` expressions by mechanism."""
    known = [entry.mechanism for entry, _ in entries]
    return {
        entry.mechanism: read_expression(text, place.at(key), known, constants)
        for entry, place in entries
        if (text := getattr(entry, key)) is not None
    }


def _names(expression: Expression | None) -> frozenset[str]:
    return frozenset() if expression is None else expression.names


def _constants(
    settings: TaskFile, project: Project, defaults: Mapping[str, Scalar]
) -> tuple[dict[str, int], list[str]]:
    """The names that expressions may use besides parameters, and where the global batch was found."""
    allocation = settings.allocation
    constants = {
        "world_size": allocation.world_size,
        "nodes": allocation.nodes,
        "gpus_per_node": allocation.gpus_per_node,
    }
    mechanisms = {entry.mechanism for entry in settings.parameters}
    if "global_batch" in mechanisms:
        return constants, []
    files = {
        binding.file: None
        for entry in settings.parameters
        for binding in entry.bindings
        if isinstance(binding, FileBinding)
    }
    held = {**_held_by_derived(settings, project), **defaults}
    found = find_global_batch(project, files, held, allocation.world_size)
    if found is None:
        return constants, []
    texts = [entry.when or "" for entry in settings.parameters]
    texts += [entry.derived or "" for entry in settings.parameters] + settings.constraints.require
    is_used = any("global_batch" in text for text in texts)
    note = f"global_batch = {found.samples}, taken from {found.source}"
    return constants | {"global_batch": found.samples}, [note] if is_used else []


def _held_by_derived(settings: TaskFile, project: Project) -> dict[str, Scalar]:
    """What the unchanged project holds for derived parameters, as far as it can be read."""
    held: dict[str, Scalar] = {}
    for entry in settings.parameters:
        for binding in entry.bindings if entry.derived is not None else ():
            found = read_value(binding, project.folder, project.command, project.env)
            if isinstance(found, bool | int | float | str) and not isinstance(binding, EnvBinding):
                number = as_number(found)
                held[entry.mechanism] = found if number is None else number
    return held


def _check_at_baseline(
    space: ParameterSpace, entries: Entries, project: Project, required: list[Place]
) -> None:
    """Check that the unchanged project fits its own expressions.

    Raises:
        TaskFileError: an expression that cannot be computed, a derived value that the project contradicts, or
            a requirement that the baseline violates.
    """
    places = {entry.mechanism: place for entry, place in entries}
    values: dict[str, tuple[Scalar, ...]] = {entry.mechanism: entry.values for entry in space.parameters}
    names = space.names(space.baseline(), lenient=True)
    every: list[SearchParameter | DerivedParameter] = [*space.parameters, *space.derived]
    for entry in every:
        if entry.when is not None:
            here = places[entry.mechanism].at("when")
            check_kinds(entry.when, is_condition=True, baseline=names, values=values, place=here)
    for derived in space.derived:
        here = places[derived.mechanism].at("derived")
        check_kinds(derived.expression, is_condition=False, baseline=names, values=values, place=here)
    for requirement, here in zip(space.requirements, required, strict=True):
        check_kinds(requirement, is_condition=True, baseline=names, values=values, place=here)
    resolved = _resolved(space, places)
    for derived in space.derived:
        for index, binding in enumerate(derived.bindings):
            here = places[derived.mechanism].at("bindings", index)
            if derived.mechanism in resolved:
                check_derived(resolved[derived.mechanism], binding, project, here)
    for requirement, here in zip(space.requirements, required, strict=True):
        _check_requirement(requirement, {**space.constants, **resolved}, here)
    for derived in space.derived:
        broken = derived.changes_batch({**space.constants, **resolved})
        if broken is not None:
            raise (
                places[derived.mechanism]
                .at("derived")
                .error(
                    f"the baseline itself breaks it: {broken}",
                    value=derived.expression.text,
                    rule="the baseline fulfils every requirement",
                )
            )


def _resolved(space: ParameterSpace, places: Mapping[str, Place]) -> dict[str, Scalar]:
    try:
        return space.resolve(space.baseline())
    except ExpressionError as error:
        mechanism = error.message.split(" = ", 1)[0]
        place = places.get(mechanism)
        if place is None:
            raise
        raise place.error(
            f"cannot be computed for the baseline: {error.message}", rule=error.rule, hint=error.hint
        ) from error


def _check_requirement(requirement: Expression, names: Mapping[str, Scalar], place: Place) -> None:
    if not requirement.names <= names.keys():
        return
    try:
        holds, reason = requirement.holds(names), ""
    except ExpressionError as error:
        holds, reason = False, f" ({error.message})"
    if not holds:
        raise place.error(
            f"the baseline itself violates it: {requirement.with_numbers(names)}{reason}",
            value=requirement.text,
            rule="the baseline fulfils every requirement",
            hint="correct the requirement, or the project",
        )
