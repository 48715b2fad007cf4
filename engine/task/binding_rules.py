"""What a binding may be, and which literals it can hold."""

from __future__ import annotations

import keyword
import re

from engine.schema.task import Binding, EnvBinding, FileBinding, FlagBinding, PythonBinding, Unset
from engine.task.bindings.access import file_of
from engine.task.bindings.literal import Literal, describe
from engine.task.place import Place

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_OWNED = re.compile(
    r"(?:LOCAL_|GROUP_|NODE_)?RANK|(?:LOCAL_)?WORLD_SIZE|MASTER_(?:ADDR|PORT)|PYTHONPATH|CUDA_VISIBLE_DEVICES"
    r"|(?:SLURM|TORCHELASTIC|INFRARSI)_.*"
)


def check_binding(binding: Binding, literals: list[Literal | Unset], place: Place) -> None:
    """Check one binding by itself, without the project.

    Raises:
        TaskFileError: a name that cannot be, or a literal that this kind of binding cannot hold.
    """
    if isinstance(binding, FlagBinding):
        _check_flag(binding, place)
        _check_flag_literals(binding, literals, place)
    elif isinstance(binding, EnvBinding):
        _check_variable(binding.env, place.at("env"))
        _check_scalars(binding, literals, place.at("env"))
    elif isinstance(binding, PythonBinding):
        if not binding.python.endswith(".py"):
            raise place.at("python").error("not a Python file", value=binding.python, rule="a .py file")
        if not binding.name.isidentifier() or keyword.iskeyword(binding.name):
            raise place.at("name").error("not a name", value=binding.name, rule="a module-level constant")
        if any(isinstance(literal, Unset) for literal in literals):
            raise place.at("python").error(
                "a Python constant cannot be unset", value=binding.name, rule="a literal for every value"
            )


def identity(binding: Binding) -> str:
    """What two bindings share when they write the same thing."""
    file = file_of(binding)
    if isinstance(binding, FileBinding):
        return f"{file}: {binding.key}"
    return f"{file}: {binding.name}" if isinstance(binding, PythonBinding) else describe(binding)


def _check_flag(binding: FlagBinding, place: Place) -> None:
    flag, place = binding.flag, place.at("flag")
    if not flag.strip("-") or re.search(r"[=\s\0]", flag):
        raise place.error("not a flag", value=flag, rule="one word without = or spaces, e.g. --micro-batch")
    prefix = {"negatable": "--", "equals": ""}.get(binding.style, "-")
    if not flag.startswith(prefix):
        raise place.error(
            "not a flag",
            value=flag,
            rule=f"a flag of style {binding.style} starts with {prefix}",
            hint=f"did you mean --{flag.lstrip('-')}?",
        )


def _check_flag_literals(binding: FlagBinding, literals: list[Literal | Unset], place: Place) -> None:
    if binding.style not in ("bare", "negatable"):
        _check_scalars(binding, literals, place.at("flag"))
        return
    for literal in literals:
        if not isinstance(literal, bool | Unset):
            raise place.at("style").error(
                f"a flag of style {binding.style} cannot hold {literal!r}",
                value=binding.style,
                rule="true: present, false or { unset = true }: absent"
                if binding.style == "bare"
                else "true, false or { unset = true }",
                hint='use style = "value" or "equals" for flags with a value',
            )


def _check_variable(name: str, place: Place) -> None:
    if not _VARIABLE.fullmatch(name):
        raise place.error("not a variable name", value=name, rule="letters, digits and _, no digit first")
    if _OWNED.fullmatch(name):
        raise place.error(
            "set by the launcher, not by a task",
            value=name,
            rule="variables of the training code or its libraries",
        )


def _check_scalars(binding: Binding, literals: list[Literal | Unset], place: Place) -> None:
    for literal in literals:
        if isinstance(literal, dict | list) or (isinstance(literal, str) and "\0" in literal):
            raise place.error(
                f"{describe(binding)} cannot hold {literal!r}", rule="a boolean, a number or a text"
            )
