"""Writing a value changes that value's characters and no others; reading it back gives what was written."""

from __future__ import annotations

import json
import tomllib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.schema.task import FlagBinding
from engine.task.bindings import flags, json_file, python_constant, toml_file, yaml_file
from engine.task.bindings.access import matches
from engine.task.bindings.literal import UNSET, BindingError, same
from engine.task.bindings.text_file import TextFile

integers = st.integers(-(2**53), 2**53)
floats = st.floats(allow_nan=False, allow_infinity=False)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
awkward = st.sampled_from(
    [
        *(
            "",
            "yes",
            "No",
            "on",
            "null",
            "~",
            "1e3",
            "0x10",
            "010",
            "- a",
            "a: b",
            "#x",
            "'",
            '"',
            "a\nb",
            " x ",
        ),
        *(
            "{a}",
            "[1]",
            "*x",
            "&x",
            "!t",
            "%",
            "@",
            "`",
            "é",
            "\u2028",
            "\x85",
            "\x1b",
            "\ufeff",
            "😀",
            "\\",
            "=",
        ),
    ]
)
scalars = st.one_of(st.booleans(), integers, floats, texts, awkward)

TOML = """\
# top
title = "x"   # why

[train]  # section
first = 1
batch = {value} # per rank
after = [1,  2 ,
  3]   # odd spacing

[[stage]]
batch = 0x10
"""
YAML = """\
# top
defaults: &d {{lr: 1.0e-3,  name: 'a''b'}}
train:
    first:   1      # odd spacing
    batch: {value} # per rank
    after:
    - a
    -   b
    long: aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb cccccc
    text: |
      kept
        as is
other: *d
"""
JSON = """\
{{
	"first" : [1,2 , {{"batch": 0}}],
  "train": {{"a":1,
"batch" :  {value} , "c": "\\u00e9"}}
}}

"""
PYTHON = '''\
"""Café."""  # ünïcode before
import os
é = "é"; BATCH: int = {value}  # per rank
def f(BATCH=3):
    return os.environ.get("BATCH", BATCH)
'''

FILES = [
    pytest.param(toml_file, TOML, "train.batch", ["1", "1_000", '"x"', "'y'", "true", "1.5"], id="toml"),
    pytest.param(
        yaml_file, YAML, "train.batch", ["1", "x", '"x y"', "'it''s'", "yes", "[1, {a: b}]"], id="yaml"
    ),
    pytest.param(json_file, JSON, "train.batch", ["1", '"a\\"}b"', "null", "[1, {}]", "true"], id="json"),
    pytest.param(
        python_constant, PYTHON, "BATCH", ["1", '"é"', "-1", "[1,\n 2]", "None", "(4)"], id="python"
    ),
]


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize(("kind", "template", "key", "old_values"), FILES)
@given(data=st.data())
def test_only_the_value_changes(
    kind: Any, template: str, key: str, old_values: list[str], newline: str, data: st.DataObject
) -> None:
    """Write then read is the identity, and all characters around the value stay."""
    old, literal = data.draw(st.sampled_from(old_values)), data.draw(scalars)
    around = template.replace("{{", "{").replace("}}", "}") if kind in (yaml_file, json_file) else template
    before, after = around.replace("\n", newline).split("{value}")
    file = TextFile("f", before + old.replace("\n", newline) + after)
    written = kind.write(file, key, literal)
    assert same(kind.read(TextFile("f", written), key), literal)
    keep_before, keep_after = (before, after) if old != "(4)" else (before + "(", ")" + after)
    assert written.startswith(keep_before)
    assert written.endswith(keep_after)
    assert len(written) > len(keep_before) + len(keep_after)


@pytest.mark.parametrize(
    ("kind", "text", "key", "expected"),
    [
        (toml_file, "[a]\nx = 1\n\n[b]\ny = 2\n", "a.new", "[a]\nx = 1\nnew = 5\n\n[b]\ny = 2\n"),
        (yaml_file, "a:\n  x: 1 # c\n\nb: 2\n", "a.new", "a:\n  x: 1 # c\n  new: 5\n\nb: 2\n"),
        (yaml_file, "a: {x: 1}\n", "a.new", "a: {x: 1, new: 5}\n"),
        (yaml_file, "a:\nb: 2\n", "a.new", "a: {new: 5}\nb: 2\n"),
        (yaml_file, "a:\n  s: |\n    t\nb: 2\n", "a.new", "a:\n  s: |\n    t\n  new: 5\nb: 2\n"),
        (yaml_file, "- x: 1\n- y: 2\n", "0.new", "- x: 1\n  new: 5\n- y: 2\n"),
        (yaml_file, "", "new", "new: 5\n"),
        (yaml_file, "a: &m {k: 1}\nb:\n  <<: *m\n", "b.k", "a: &m {k: 1}\nb:\n  <<: *m\n  k: 5\n"),
        (yaml_file, "# only a comment", "new", "# only a comment\nnew: 5\n"),
        (json_file, '{"a": {"x": 1}}', "a.new", '{"a": {"x": 1, "new": 5}}'),
        (
            json_file,
            '{\n  "a": {\n    "x": 1\n  }\n}',
            "a.new",
            '{\n  "a": {\n    "x": 1,\n    "new": 5\n  }\n}',
        ),
        (json_file, '{"a": {}}', "a.new", '{"a": {"new": 5}}'),
        (json_file, '{"a": null}', "a.new", '{"a": {"new": 5}}'),
        (json_file, '{"x":1,"y":2}', "new", '{"x":1,"y":2,"new":5}'),
    ],
)
def test_new_keys_take_the_layout_of_their_neighbours(kind: Any, text: str, key: str, expected: str) -> None:
    """A key that is added changes no other line, and removing it gives the text back."""
    written = kind.write(TextFile("f", text), key, 5)
    assert written == expected
    assert kind.read(TextFile("f", written), key) == 5


@pytest.mark.parametrize(
    ("kind", "text", "key", "expected"),
    [
        (toml_file, "[a]\nx = 1\ny = 2 # c\n[b]\nz = 3\n", "a.y", "[a]\nx = 1\n[b]\nz = 3\n"),
        (toml_file, "a = { x = 1, y = 2 }\n", "a.y", "a = { x = 1  }\n"),
        (yaml_file, "a:\n  x: 1\n  y: 2 # c\nb: 3\n", "a.y", "a:\n  x: 1\nb: 3\n"),
        (yaml_file, "a:\n  x: 1\nb: 3\n", "a.x", "a:\n  {}\nb: 3\n"),
        (yaml_file, "- x: 1\n  y: 2\n- z: 3\n", "0.x", "- y: 2\n- z: 3\n"),
        (yaml_file, "a: {x: 1, y: 2}\n", "a.y", "a: {x: 1}\n"),
        (yaml_file, "a: {x: 1, y: 2}\n", "a.x", "a: {y: 2}\n"),
        (yaml_file, "x:\n- 1\n- 2\ny: 3\n", "x", "y: 3\n"),
        (json_file, '{"x": 1, "y": 2}', "y", '{"x": 1}'),
        (json_file, '{"x": 1, "y": 2}', "x", '{"y": 2}'),
        (json_file, '{\n  "x": 1\n}', "x", "{}"),
    ],
)
def test_removed_keys_leave_the_rest(kind: Any, text: str, key: str, expected: str) -> None:
    """Unsetting removes the key with its line; all other keys and lines stay; absent keys change nothing."""
    written = kind.write(TextFile("f", text), key, UNSET)
    assert written == expected
    assert kind.read(TextFile("f", written), key) == UNSET
    assert kind.write(TextFile("f", written), key, UNSET) == written


@pytest.mark.parametrize(
    ("kind", "text", "key"),
    [
        (yaml_file, "a: &x 1\nb: *x\n", "a"),
        (yaml_file, "a: &x 1\nb: *x\n", "b"),
        (yaml_file, "a: [1, 2]\n", "a.k"),
        (json_file, '{"a": [1]}', "a.k"),
        (json_file, '{"a": 1}', "a.k"),
        (toml_file, "a = 1\n", "a.k"),
    ],
)
def test_what_cannot_be_changed_alone_is_refused(kind: Any, text: str, key: str) -> None:
    """An edit that would touch another value is an error, never half done."""
    with pytest.raises(BindingError) as caught:
        kind.write(TextFile("f", text), key, 5)
    assert caught.value.hint


def test_yaml_is_read_like_a_training_script_reads_it() -> None:
    """Booleans of YAML 1.1 are booleans, quoted ones are texts, merges are followed."""
    text = "a: yes\nb: 'yes'\nc: 1e-3\nd: !!str x\ne: ~\nf: &m {k: 1, j: 2}\ng: {<<: *m, j: 3}\n7: seven\n"
    file = TextFile("f", text)
    values = {key: yaml_file.read(file, key) for key in ("a", "b", "c", "d", "e", "g.k", "g.j", "7")}
    assert values == {
        "a": True, "b": "yes", "c": 0.001, "d": "x", "e": None, "g.k": 1, "g.j": 3, "7": "seven"
    }  # fmt: skip


def test_arrays_of_tables_and_quoted_keys() -> None:
    """Integer parts count into lists, quoted parts may have dots."""
    text = '[[stage]]\nlr = 1\n[[stage]]\nlr = 2\n[a."b.c"]\nd = 3\n'
    assert toml_file.write(TextFile("f", text), "stage.1.lr", 9) == text.replace("lr = 2", "lr = 9")
    assert toml_file.read(TextFile("f", text), 'a."b.c".d') == 3
    assert toml_file.read(TextFile("f", text), "stage.2.lr") == UNSET


words = st.lists(
    st.sampled_from(["train.py", "--y", "3", "--x-long", "--no-z", "{output_dir}", "a b", "ü"]), max_size=6
)


@given(before=words, after=words, style=st.sampled_from(["value", "equals"]), literal=scalars)
def test_flags_keep_the_rest_of_the_command(
    before: list[str], after: list[str], style: Any, literal: Any
) -> None:
    """A flag with a value is replaced in place, or added at the end; unset removes it and only it."""
    binding = FlagBinding(flag="--x", style=style)
    for old in ([], ["--x", "old"], ["--x=old"]):
        command = [*before, *old, *after]
        written = flags.write(command, binding, literal)
        assert matches(binding, flags.read(written, binding), literal)
        if old:
            assert written[: len(before)] == before
            assert written[len(before) + len(old) :] == after
        else:
            assert written[: len(command)] == command
        assert flags.write(written, binding, UNSET) == [*before, *after]


@given(before=words, after=words)
def test_switches_are_present_or_absent(before: list[str], after: list[str]) -> None:
    """A bare flag is there or not; a negatable one has two forms; each keeps its place."""
    bare, negatable = FlagBinding(flag="--z", style="bare"), FlagBinding(flag="--q", style="negatable")
    off = [*before, *after]
    on = flags.write([*before, "--z", *after], bare, True)
    assert on == [*before, "--z", *after]
    assert flags.write(on, bare, False) == off
    assert flags.write(off, bare, True) == [*off, "--z"]
    assert flags.write([*before, "--q", *after], negatable, False) == [*before, "--no-q", *after]
    assert flags.write([*before, "--no-q", *after], negatable, UNSET) == off
    assert flags.read([*before, "--no-q", "--q"], negatable) is True


def test_flags_after_a_double_dash_belong_to_somebody_else() -> None:
    """Arguments behind `--` are not read, and new flags go before it."""
    command = ["run", "--", "--x", "1"]
    assert flags.read(command, FlagBinding(flag="--x")) == UNSET
    assert flags.write(command, FlagBinding(flag="--x"), 2) == ["run", "--x", "2", "--", "--x", "1"]


@pytest.mark.parametrize(
    ("old", "new"), [("True", "False"), ("yes", "no"), ("1", "0"), ("on", "off"), ("x", "false")]
)
def test_booleans_are_spelt_like_what_they_replace(old: str, new: str) -> None:
    """A script that parses True/False or yes/no keeps getting that spelling."""
    assert flags.write(["--x", old], FlagBinding(flag="--x"), False) == ["--x", new]


def test_parsers_of_the_standard_library_agree() -> None:
    """What was written is what another parser reads."""
    assert tomllib.loads(toml_file.write(TextFile("f", "a = 1 # c\n"), "a", 1.5)) == {"a": 1.5}
    assert json.loads(json_file.write(TextFile("f", '{"a": 1}'), "a", "ü\n")) == {"a": "ü\n"}
