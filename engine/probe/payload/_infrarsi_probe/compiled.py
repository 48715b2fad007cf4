"""Sees training that runs inside `torch.compile`d plain functions, where no module call is outermost."""

from __future__ import annotations

import functools
import sys
from typing import TYPE_CHECKING, Any, Optional

from _infrarsi_probe.hyper import step_hyper
from _infrarsi_probe.sampling import Sample
from _infrarsi_probe.session import quietly
from _infrarsi_probe.shield import passes_through

if TYPE_CHECKING:
    from _infrarsi_probe.session import Session

MAX_SEARCHED = 200  # values looked at to find the model of a compiled function
MAX_IDLE_CALLS = 3  # calls after which a function that never moved weights is no longer watched for it


class CompiledFunction:
    """One compiled function: the module that it works on, and whether it was seen to move weights."""

    def __init__(self, function: Any, module_class: Any) -> None:
        self.function = function
        self.module = _module_of(function, module_class)
        self.idle_calls = 0
        self.moves_weights = False


class CompileWatch:
    """Wraps what `torch.compile` returns for functions and bound optimizer steps; modules stay bare."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self._optimizer_class = sys.modules["torch.optim.optimizer"].Optimizer
        self._before: list[Any] = []
        self._steps = 0
        self._unseen: Any = None  # arguments of a call that may turn out to be a training step

    def install(self) -> None:
        """Wrap `torch.compile` itself."""
        session = self.session
        torch = session.torch
        original = torch.compile
        compiling, module_class = torch.compiler.is_compiling, torch.nn.Module

        @passes_through
        @functools.wraps(original)
        def compile_function(model: Any = None, *args: Any, **kwargs: Any) -> Any:
            result = original(model, *args, **kwargs)
            owner = getattr(model, "__self__", None)
            if model is None or isinstance(model, (module_class, type)) or isinstance(owner, module_class):
                return result
            if not callable(result) or not session.active or compiling():
                return result
            if isinstance(owner, self._optimizer_class):
                return self._step_wrapper(result, owner)
            return self._function_wrapper(result, CompiledFunction(model, module_class))

        session.integrity.replace("compile", torch, "compile", compile_function)

    def _step_wrapper(self, result: Any, optimizer: Any) -> Any:
        session, compiling = self.session, self.session.torch.compiler.is_compiling

        @passes_through
        @functools.wraps(result)
        def compiled_step(*args: Any, **kwargs: Any) -> Any:
            if compiling() or session.optimizers.depth > 0:
                return result(*args, **kwargs)
            session.optimizers.before_step(optimizer, (optimizer, *args), kwargs, sys._getframe())
            returned = result(*args, **kwargs)
            session.optimizers.after_step(optimizer)
            return returned

        return compiled_step

    def _function_wrapper(self, result: Any, compiled: CompiledFunction) -> Any:
        session, busy = self.session, self.session.busy
        compiling = session.torch.compiler.is_compiling

        @passes_through
        @functools.wraps(result)
        def compiled_function(*args: Any, **kwargs: Any) -> Any:
            if busy[0] or compiling() or session.optimizers.depth > 0 or not session.active:
                return result(*args, **kwargs)
            self.enter(compiled, args, kwargs)
            mark = session.stopwatch.start()
            busy[0] = True
            try:
                return result(*args, **kwargs)
            except Exception as error:
                session.exceptions.note("forward", error)
                raise
            finally:
                training = session.training_forward
                busy[0] = session.training_forward = False
                self.leave(compiled, mark, training)

        return compiled_function

    @quietly("compiled function")
    def enter(self, compiled: CompiledFunction, args: Any, kwargs: Any) -> None:
        """An outermost compiled call begins."""
        session = self.session
        session.event()
        training = session.torch.is_grad_enabled()
        module = compiled.module
        if module is None:
            module = _module_among(args, kwargs, session.torch.nn.Module)
        training = training and (module is None or module.training)
        session.training_forward = training
        self._before, self._unseen = [], None
        self._steps = session.updates.current.n["optimizer"]
        if not training:
            return
        if module is not None or compiled.moves_weights:
            session.roots.observe(module, args, kwargs, compiled.function)
        else:
            self._unseen = (args, kwargs)
        if compiled.moves_weights or compiled.idle_calls < MAX_IDLE_CALLS:
            for optimizer in session.optimizers.live():
                parameters = [p for group in optimizer.param_groups for p in group["params"]]
                sample = Sample(session.torch, parameters, session.updates.index)
                self._before.append((optimizer, sample, step_hyper(optimizer, session.torch.Tensor)))

    @quietly("compiled function")
    def leave(self, compiled: CompiledFunction, mark: Any, training: bool) -> None:
        """The call is over: was it a whole training step?"""
        session = self.session
        session.stopwatch.stop("forward" if training else "eval", mark)
        collected = session.updates.current
        before, unseen = self._before, self._unseen
        self._before, self._unseen = [], None
        if not before or collected.n["optimizer"] > self._steps:
            return
        moved = False
        for optimizer, sample, hyper in before:
            changed, sampled = sample.compare()
            if changed:
                moved = True
                number = session.optimizers.number_of(optimizer)
                collected.hyper[number] = hyper
                session.optimizers.note_step(number, sample, changed, sampled)
        if moved:
            if unseen is not None:
                session.roots.observe(None, *unseen, compiled.function)
            compiled.moves_weights = collected.opaque_step = True
            session.stopwatch.synchronize()
            session.updates.mark_end()
        else:
            compiled.idle_calls += 1


def _module_among(args: Any, kwargs: Any, module_class: Any) -> Optional[Any]:
    for value in (*args, *kwargs.values()):
        if isinstance(value, module_class) and next(value.parameters(), None) is not None:
            return value
    return None


def _module_of(function: Any, module_class: Any) -> Optional[Any]:
    """The largest module that the function's closure, globals or owner name, also through inner functions."""
    found: dict[int, Any] = {}
    seen: set[int] = set()
    waiting = [function]
    while waiting and len(seen) < MAX_SEARCHED:
        value = waiting.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, module_class):
            found[id(value)] = value
        elif callable(value) and not isinstance(value, type):
            waiting += _named_by(getattr(value, "__wrapped__", value))
    return max(found.values(), key=lambda module: sum(p.numel() for p in module.parameters()), default=None)


def _named_by(function: Any) -> list[Any]:
    """Values that a function refers to: closure cells, globals by name, attributes of a method's owner."""
    values = [cell.cell_contents for cell in getattr(function, "__closure__", None) or () if _is_filled(cell)]
    code, names = getattr(function, "__code__", None), getattr(function, "__globals__", {})
    if code is not None:
        values += [names[name] for name in code.co_names if name in names]
    owner = getattr(function, "__self__", None)
    if owner is not None:
        values += [owner, *getattr(owner, "__dict__", {}).values()]
    return values


def _is_filled(cell: Any) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False
