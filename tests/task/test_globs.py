from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.task.globs import glob_problem, matches_any
from engine.task.placeholders import placeholders_in, substitute

parts = st.text(st.characters(exclude_characters="/\0", exclude_categories=["Cs"]), min_size=1, max_size=8)


@pytest.mark.parametrize(
    ("pattern", "inside", "outside"),
    [
        ("train.py", ["train.py"], ["sub/train.py", "train.pyc", "trainxpy"]),
        ("*.py", ["a.py", ".py"], ["sub/a.py", "a.pyc"]),
        ("src", ["src/a", "src/b/c.py", "src"], ["srcs/a", "x/src"]),
        ("src/", ["src/a", "src/b/c"], ["src"]),
        ("src/**/*.py", ["src/a.py", "src/b/c/d.py"], ["a.py", "src/a.c"]),
        ("**", ["a", "b/c"], []),
        ("**/test_*", ["test_a", "x/y/test_b"], ["x/test_b/c", "atest_b"]),
        ("src/*", ["src/a"], ["src/a/b"]),
        ("[ab]?.py", ["a1.py", "bx.py"], ["c1.py", "a/.py", "a.py"]),
        ("[!a].py", ["b.py"], ["a.py", "/.py"]),
        ("./src//a", ["src/a"], ["a"]),
        ("[", ["["], ["a"]),
    ],
)
def test_globs(pattern: str, inside: list[str], outside: list[str]) -> None:
    """Stars stay within a folder, double stars cross them, a plain name covers what lies below."""
    assert [path for path in inside if not matches_any(path, [pattern])] == []
    assert [path for path in outside if matches_any(path, [pattern])] == []


@given(
    st.lists(parts.filter(lambda part: part not in (".", "..") and not set(part) & set("*?[")), min_size=1)
)
def test_a_path_without_wildcards_covers_itself(path: list[str]) -> None:
    """Any odd name (spaces, quotes, newlines) is matched literally."""
    text = "/".join(path)
    if glob_problem(text) is None:
        assert matches_any(text, [text])
        assert not matches_any(text + "x", [text])


@pytest.mark.parametrize("pattern", ["", " ", "/a", "~/a", "../a", "a/../../b"])
def test_globs_out_of_the_project_are_refused(pattern: str) -> None:
    """A glob is relative and stays inside."""
    assert glob_problem(pattern) is not None


def test_placeholders() -> None:
    """Only single braces around a name are placeholders; JSON, shell and templates stay as they are."""
    word = '{nnodes}:{output_dir} ${HOME} {{ x }} {{x}} {"a":1} {}'
    assert placeholders_in(word) == ["nnodes", "output_dir"]
    assert substitute("{nnodes}/{output_dir}", {"nnodes": 2}) == "2/{output_dir}"
