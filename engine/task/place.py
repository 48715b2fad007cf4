"""A place in the task file, so that every error names the file and the dotted key."""

from __future__ import annotations

import dataclasses

from engine.errors import TaskFileError


@dataclasses.dataclass(frozen=True)
class Place:
    """A key of a task file, e.g. `parameters[2].bindings[0].file`."""

    file: str
    key: str = ""

    def at(self, *parts: str | int) -> Place:
        """The place below this one."""
        key = self.key
        for part in parts:
            if isinstance(part, int):
                key += f"[{part}]"
            else:
                key += f".{part}" if key else part
        return Place(self.file, key)

    def error(
        self, message: str, *, value: object = None, rule: str | None = None, hint: str | None = None
    ) -> TaskFileError:
        """An error at this place."""
        return TaskFileError(message, file=self.file, key=self.key or None, value=value, rule=rule, hint=hint)
