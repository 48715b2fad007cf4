"""Exceptions of the code itself: the configuration's, a patch's, or the user's own."""

from __future__ import annotations

import re
from collections.abc import Sequence

from engine.schema.evidence import Frame
from engine.schema.trial import Attribution, FailureKind
from engine.trial.attribution.context import AttributionContext
from engine.trial.attribution.faults import Fault
from engine.trial.attribution.logs import LogLine, search_lines

_KNOWN_CONFLICT = re.compile(
    r"Expected to mark a variable ready only once|marked as ready twice|expect_autograd_hooks_"
    r"|Expected to have finished reduction|training graph has changed in this iteration"
    r"|does not support backward|only supports? (?:fp16|bf16|head)|is not divisible by|must be divisible by"
    r"|Recomputed values for the following tensors|overwritten by a subsequent run|stream is capturing"
    r"|Expected inputs of BF16 type|backend='inductor' raised|LoweringException|GuardOnDataDependent"
    r"|recompile_limit|flatten tensors with uniform|mixed torch\.Tensor and DTensor|unscale FP16 gradients"
    r"|not compatible with|incompatible with|mutually exclusive"
)
_COMPILER_TYPES = frozenset(
    {"Unsupported", "TorchRuntimeError", "InternalTorchDynamoError", "BackendCompilerFailed", "InductorError"}
    | {"FailOnRecompileLimitHit", "LoweringException", "UserError", "CppCompileError", "NoValidChoicesError"}
)
_NAMED_CHANGES = 3
_SYNTAX_TYPES = frozenset({"SyntaxError", "IndentationError", "TabError"})
_LIBRARY = re.compile(r"/site-packages/|/dist-packages/|/lib/python3|^<")
_ARGUMENTS = re.compile(
    r"error: (?:unrecognized arguments|argument .*: (?:invalid|expected)"
    r"|the following arguments are required)"
)
_SIGNATURE_LENGTH = 160


def attribute_exception(fault: Fault, context: AttributionContext) -> Attribution:
    """Whose exception it is: the patch's, the configuration's, or, without either, the user's own.

    With only one suspect there is nothing to decide. With both, the innermost frame of the project decides,
    except that a text known to come from a combination of options is the configuration's wherever it
    surfaces.
    """
    patched = _patched_frame(fault, context.patched_files)
    is_known = _KNOWN_CONFLICT.search(fault.text) is not None or fault.class_name in _COMPILER_TYPES
    if context.had_patch and (not context.changes or (patched is not None and not is_known)):
        place = f" in the patched file {patched.file.rpartition('/')[2]}" if patched is not None else ""
        return _attribution(FailureKind.PATCH_ERROR, True, f"the patched code failed{place}", fault, context)
    if context.changes:
        named = f"this combination of {len(context.changes)} changes"
        if len(context.changes) <= _NAMED_CHANGES:
            named = ", ".join(f"{name} = {value}" for name, value in sorted(context.changes.items()))
        return _attribution(FailureKind.CONFIG_CONFLICT, True, f"the code refuses {named}", fault, context)
    return _attribution(FailureKind.USER_ERROR, False, "the unchanged job fails by itself", fault, context)


def attribute_arguments(lines: Sequence[LogLine], context: AttributionContext) -> Attribution | None:
    """The attribution of a script that rejects its command line, which raises nothing; else None."""
    line = search_lines(lines, _ARGUMENTS)
    if line is None:
        return None
    words = line.text.strip()
    suspects = bool(context.changes)
    return Attribution(
        kind=FailureKind.CONFIG_CONFLICT if suspects else FailureKind.USER_ERROR,
        blame_candidate=suspects,
        cause=f"the script does not accept its command line: {words}",
        rank=line.rank,
        evidence=(line.quote(),),
        implicated=context.implicated,
        signature=f"arguments: {normalise(words)}",
    )


def signature(fault: Fault) -> str:
    """What two equal failures have in common: type, message without numbers and paths, innermost function."""
    innermost = fault.frames[-1] if fault.frames else None
    place = f" @ {innermost.file.rpartition('/')[2]}:{innermost.name}" if innermost is not None else ""
    return f"{fault.class_name}: {normalise(fault.message)}{place}"


def normalise(message: str) -> str:
    """First line of a message without addresses, numbers, paths and lists of numbers."""
    text = message.strip().partition("\n")[0]
    text = re.sub(r"0x[0-9a-fA-F]+", "#", text)
    text = re.sub(r"(?:[A-Za-z]:)?(?:/[\w.+@~-]+)+/", "", text)
    text = re.sub(r"\d+(?:\.\d+)?", "#", text)
    text = re.sub(r"#(?:, ?#)+", "#", text)
    return " ".join(text.split())[:_SIGNATURE_LENGTH]


def _attribution(
    kind: FailureKind, blame: bool | None, what: str, fault: Fault, context: AttributionContext
) -> Attribution:
    return Attribution(
        kind=kind,
        blame_candidate=blame,
        cause=f"{what}: {fault.words()}",
        rank=fault.rank,
        evidence=fault.evidence,
        implicated=context.implicated if kind is FailureKind.CONFIG_CONFLICT else (),
        signature=signature(fault),
    )


def _patched_frame(fault: Fault, patched_files: Sequence[str]) -> Frame | None:
    """The project's innermost frame if its file is patched; a syntax error points at its own file."""
    project = [frame for frame in fault.frames if not _LIBRARY.search(frame.file)]
    if fault.class_name in _SYNTAX_TYPES:
        named = re.search(r"\(([\w./-]+\.py), line (\d+)\)", fault.message)
        if named is not None:
            project.append(Frame(file=named[1], line=int(named[2]), name=""))
    if not project:
        return None
    innermost = project[-1]
    return innermost if any(_is_file(innermost.file, path) for path in patched_files) else None


def _is_file(seen: str, relative: str) -> bool:
    """Whether a path in a traceback is the project's file; a bare name is compared by name."""
    wanted = relative.removeprefix("./")
    return seen == wanted or seen.endswith(f"/{wanted}") or ("/" not in seen and wanted.endswith(f"/{seen}"))
