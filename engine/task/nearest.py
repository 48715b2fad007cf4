"""The nearest valid word for a misspelt one."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def nearest(word: object, options: Iterable[object]) -> str | None:
    """The option that is spelt most like `word`, or None where nothing is close."""
    texts = {str(option).casefold(): str(option) for option in options}
    found = difflib.get_close_matches(str(word).casefold(), texts, n=1, cutoff=0.6)
    return texts[found[0]] if found else None


def did_you_mean(word: object, options: Iterable[object]) -> str:
    """A hint: the nearest option, or else all of them (at most twelve)."""
    listed = [str(option) for option in options]
    close = nearest(word, listed)
    if close is not None:
        return f"did you mean {close!r}?"
    if not listed:
        return "there is none to choose from"
    return "valid: " + ", ".join(listed[:12]) + (", …" if len(listed) > 12 else "")
