"""Reading and writing a project's own text files: UTF-8, line ends, byte-order mark and mode as they were."""

from __future__ import annotations

import codecs
import dataclasses
import stat
from pathlib import Path

from engine import durable
from engine.task.bindings.literal import BindingError

_BOM = codecs.BOM_UTF8.decode("utf-8")


@dataclasses.dataclass(frozen=True)
class TextFile:
    """A text without its byte-order mark, and whether it had one."""

    name: str
    text: str
    bom: bool = False

    @property
    def newline(self) -> str:
        """The line end that the file uses."""
        return "\r\n" if "\r\n" in self.text else "\n"


def locate(root: Path, name: str, field: str) -> Path:
    """The real path of a bound file, which must lie inside `root`.

    Raises:
        BindingError: an absolute path, a way out of the project, or no such file.
    """
    rule = "a path inside the project, relative to it, without .."
    path = Path(name)
    if not name or "\0" in name or path.is_absolute() or ".." in path.parts:
        raise BindingError(field, "the path leaves the project", value=name, rule=rule)
    real_root = root.resolve()
    real = (real_root / path).resolve()
    if not real.is_relative_to(real_root):
        raise BindingError(field, f"a link leads out of the project, to {real}", value=name, rule=rule)
    if not real.is_file():
        what = "is a folder" if real.is_dir() else "does not exist in the project"
        raise BindingError(field, f"the file {what}", value=name, rule="an existing file of the project")
    return real


def read_file(root: Path, name: str, field: str = "file") -> TextFile:
    """Read a file of the project.

    Raises:
        BindingError: the file is outside, missing, unreadable or not UTF-8.
    """
    path = locate(root, name, field)
    try:
        text = path.read_bytes().decode("utf-8")
    except UnicodeDecodeError as error:
        raise BindingError(
            field, f"not UTF-8 (byte {error.start})", value=name, rule="bound files are UTF-8 text"
        ) from error
    except OSError as error:
        raise BindingError(field, f"cannot be read: {error.strerror}", value=name) from error
    return TextFile(name, text.removeprefix(_BOM), text.startswith(_BOM))


def replace_text(root: Path, file: TextFile, text: str, field: str = "file") -> None:
    """Write the file anew, atomically; a link inside the tree is followed, the mode kept.

    Raises:
        BindingError: the file is outside or missing.
        InfrastructureError: the disk refuses.
    """
    if text == file.text:
        return
    path = locate(root, file.name, field)
    mode = stat.S_IMODE(path.stat().st_mode)
    durable.write_text(path, (_BOM if file.bom else "") + text, mode=mode)
    with durable.explain_disk_errors(path):
        path.chmod(mode)


def not_changeable(file: str, key: str, reason: str) -> BindingError:
    """An edit would have changed more than the one value: refused, never half done."""
    return BindingError(
        "key",
        f"the value cannot be changed without touching the rest of the file ({reason})",
        file=file,
        value=key,
        rule="one value of its own, written out where it is used",
        hint="write the value out at this key (no alias, no merge), or bind a flag or a variable instead",
    )
