"""The Markdown pages of the repository, their links and their commands."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SKIPPED = {".venv", "runs", "build", "dist", "node_modules", "studies"}

_FENCE = re.compile(r"^(\s*)(```+|~~~+)\s*(\S*).*?\n(.*?)^\1\2\s*$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\[[^\]]*\]\(<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\)")
_HEADING = re.compile(r"^#+\s+(.*?)\s*$", re.MULTILINE)
_MAKE = re.compile(r"\bmake\s+([a-z][a-z_-]*)")
_INLINE = re.compile(r"`([^`\n]+)`")


@dataclass(frozen=True)
class Command:
    """One command line of a page: its words after `infrarsi`."""

    page: str
    words: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.page}: infrarsi {shlex.join(self.words)}"


def pages() -> list[Path]:
    """All Markdown files, hidden and generated folders left out."""
    return sorted(
        path
        for path in ROOT.rglob("*.md")
        if not any(part in SKIPPED or part.startswith(".") for part in path.relative_to(ROOT).parts)
    )


def name_of(page: Path) -> str:
    """A page's path from the top."""
    return page.relative_to(ROOT).as_posix()


def links(page: Path) -> list[str]:
    """Targets of links outside fenced blocks."""
    return _LINK.findall(_FENCE.sub("", page.read_text(encoding="utf-8")))


def anchors(page: Path) -> set[str]:
    """Anchors of a page's headings, as forges make them."""
    text = _FENCE.sub("", page.read_text(encoding="utf-8"))
    plain = (re.sub(r"[^\w\- ]", "", heading).lower() for heading in _HEADING.findall(text))
    return {heading.replace(" ", "-") for heading in plain}


def fenced(page: Path, *languages: str) -> list[str]:
    """Fenced blocks in some languages."""
    found = _FENCE.findall(page.read_text(encoding="utf-8"))
    return [text for _indent, _fence, language, text in found if language in languages]


def commands(page: Path) -> Iterator[Command]:
    r"""`infrarsi …` lines of the shell blocks; `\` joins lines, `#` comments, `$ ` prompts."""
    for block in fenced(page, "sh", "bash", "console"):
        for line in block.replace("\\\n", " ").splitlines():
            words = shlex.split(line.removeprefix("$ "), comments=True)
            program = words[0].rpartition("/")[2] if words else ""
            if program == "infrarsi":
                yield Command(name_of(page), tuple(words[1:]))


def make_targets(page: Path) -> set[str]:
    """Targets of `make` named in code: fenced shell blocks and inline code."""
    code = [*fenced(page, "sh", "bash", "console"), *_INLINE.findall(page.read_text(encoding="utf-8"))]
    return {target for text in code for target in _MAKE.findall(text)}
