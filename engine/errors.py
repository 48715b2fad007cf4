"""Every error that a user can meet, as one tree.

    InfraError                  base: message + file, key, value, rule, hint
    ├── UsageError              the command line or a task file is wrong               (exit 2)
    │   ├── TaskFileError       a key of infrarsi.toml
    │   └── ScopeError          a patch or a binding leaves its scope
    ├── InfrastructureError     disk, scheduler, node: nobody's candidate is to blame  (exit 3)
    │   ├── DiskFullError
    │   └── StudyBusyError      another live engine owns the study
    ├── BaselineError           the unchanged training job itself fails                (exit 4)
    └── IntegrityError          a file of the study does not hold what it must         (exit 5)

A failed *trial* is not an error: it is an Outcome (engine/schema/trial.py).
"""

from __future__ import annotations

import enum


class ExitCode(enum.IntEnum):
    """Exit codes of the command line; scripts rely on them."""

    DONE = 0
    NO_IMPROVEMENT = 1
    USAGE = 2
    INFRASTRUCTURE = 3
    BASELINE_FAILED = 4
    INTEGRITY = 5
    INTERNAL = 70
    INTERRUPTED = 130


class InfraError(Exception):
    """An error with everything a person needs to mend it.

    Args:
        message: One sentence: what is wrong.
        file: The file that holds the mistake.
        key: The key, dotted, or the option.
        value: The offending value as written.
        rule: What would be right.
        hint: The next step.
    """

    exit_code = ExitCode.INTERNAL
    kind = "internal"

    def __init__(
        self,
        message: str,
        *,
        file: str | None = None,
        key: str | None = None,
        value: object = None,
        rule: str | None = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.file = file
        self.key = key
        self.value = value
        self.rule = rule
        self.hint = hint

    @property
    def statement(self) -> str:
        """What is wrong, with the value and the rule; the place and the next step are apart."""
        parts = [self.message]
        if self.value is not None:
            parts.append(f"value: {self.value!r}")
        if self.rule:
            parts.append(f"rule: {self.rule}")
        return "; ".join(parts)

    def __str__(self) -> str:
        where = "".join(f"{part}: " for part in (self.file, self.key) if part)
        hint = f"; hint: {self.hint}" if self.hint else ""
        return f"{where}{self.statement}{hint}"


class UsageError(InfraError):
    """The command line or an input file is wrong."""

    exit_code = ExitCode.USAGE
    kind = "usage"


class TaskFileError(UsageError):
    """A key of a task file is wrong."""

    kind = "task_file"


class ScopeError(UsageError):
    """A patch or a binding leaves its scope."""

    kind = "scope"


class InfrastructureError(InfraError):
    """Disk, scheduler or node: no candidate is to blame."""

    exit_code = ExitCode.INFRASTRUCTURE
    kind = "infrastructure"


class DiskFullError(InfrastructureError):
    """No space is left where the study is written."""

    kind = "disk_full"


class StudyBusyError(InfrastructureError):
    """Another live engine owns the study."""

    kind = "study_busy"


class BaselineError(InfraError):
    """The unchanged training job itself does not run."""

    exit_code = ExitCode.BASELINE_FAILED
    kind = "baseline_failed"


class IntegrityError(InfraError):
    """A file of the study does not hold what it must."""

    exit_code = ExitCode.INTEGRITY
    kind = "integrity"
