"""What leaves a study holds nothing private, and stays readable."""

from __future__ import annotations

import getpass
import socket
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from engine.stages.redaction import Redactor

STUDY = Path("/home/someone/studies/a b")
REDACTOR = Redactor([(STUDY, "<study>"), (Path("/home/someone"), "<home>")])


def test_known_folders_become_their_names() -> None:
    """The longest known folder wins, and what follows it stays."""
    text = REDACTOR.text("see /home/someone/studies/a b/trials/t001/launcher.log and /home/someone/x.py")
    assert text == "see <study>/trials/t001/launcher.log and <home>/x.py"


def test_of_unknown_paths_only_the_end_stays() -> None:
    """A traceback's file can be recognised, its place on the machine cannot."""
    assert REDACTOR.text('File "/opt/site/lib/python3/torch/nn/linear.py"') == 'File "…/nn/linear.py"'


def test_host_and_user_are_replaced_as_words() -> None:
    """Names are replaced where they stand alone, not inside other words."""
    host, user = socket.gethostname(), getpass.getuser()
    text = REDACTOR.text(f"process 7 on {host} of {user}; {user}land")
    assert f"on {host}" not in text
    assert text.startswith("process 7 on <host> of <user>; ")


def test_ordinary_text_is_left_alone() -> None:
    """Ratios, units and options are no paths."""
    text = "1.5 s/update, 3/16 trials, --out DIR, and/or, 12 GiB"
    assert REDACTOR.text(text) == text


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(), lambda each: st.lists(each)))
def test_values_keep_their_shape(value: object) -> None:
    """Redaction changes texts only, and doing it twice changes nothing more."""
    once = REDACTOR.value(value)
    assert REDACTOR.value(once) == once
    if not isinstance(value, str | list):
        assert once == value
