"""Keeps torch.compile away from the probe's frames: graphs and breaks stay those of the bare script.

Two strategies: bookkeeping is skipped together with everything that it calls; a wrapper around user code is
skipped alone, so that what it wraps is still compiled.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from types import CodeType, FunctionType
from typing import Any, TypeVar

_F = TypeVar("_F", bound=Callable[..., Any])
_PACKAGE = __name__.split(".", maxsplit=1)[0]
_wrappers: set[CodeType] = set()


def passes_through(function: _F) -> _F:
    """Mark a wrapper that calls user code: compile frames inside it as usual."""
    _wrappers.add(function.__code__)  # type: ignore[attr-defined]
    return function


def shield_package() -> None:
    """Apply both strategies to every function of the package; call it when all hooks are installed.

    Raises ImportError or AttributeError where this torch has no way to skip a frame.
    """
    from torch._C._dynamo import eval_frame

    if hasattr(eval_frame, "set_code_exec_strategy"):
        skip, default = eval_frame._FrameAction.SKIP, eval_frame._FrameAction.DEFAULT
        alone = eval_frame._FrameExecStrategy(skip, default)
        with_callees = eval_frame._FrameExecStrategy(skip, skip)
        for code in _package_code():
            eval_frame.set_code_exec_strategy(code, alone if code in _wrappers else with_callees)
    else:  # torch < 2.7
        for code in _package_code():
            eval_frame.skip_code(code)


def _package_code() -> Iterator[CodeType]:
    for name, module in list(sys.modules.items()):
        if name.split(".", maxsplit=1)[0] != _PACKAGE or module is None:
            continue
        for value in list(vars(module).values()):
            if getattr(value, "__module__", None) == name:
                yield from _code_of(value)


def _code_of(value: Any) -> Iterator[CodeType]:
    if isinstance(value, FunctionType):
        yield from _nested(value.__code__)
        yield from _code_of(getattr(value, "__wrapped__", None))
    elif isinstance(value, (staticmethod, classmethod)):
        yield from _code_of(value.__func__)
    elif isinstance(value, property):
        yield from _code_of(value.fget)
    elif isinstance(value, type):
        for member in list(vars(value).values()):
            yield from _code_of(member)


def _nested(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _nested(constant)
