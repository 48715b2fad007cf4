from __future__ import annotations

import itertools
import shutil
import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm.scheduler.hostlist import expand


@pytest.mark.parametrize(
    ("hostlist", "names"),
    [
        ("nodeA,nodeB[001,003],nodeC", "nodeA nodeB001 nodeB003 nodeC"),
        ("node[01-16]", " ".join(f"node{number:02d}" for number in range(1, 17))),
        ("b04-[09-10]", "b04-09 b04-10"),
        ("rack[0-1]_blade[0-1]", "rack0_blade0 rack0_blade1 rack1_blade0 rack1_blade1"),
        ("h[001,003-004,006]", "h001 h003 h004 h006"),
        (
            "ml-16-node-[001-002,004],ml-17-node-[001-003]",
            "ml-16-node-001 ml-16-node-002 ml-16-node-004 ml-17-node-001 ml-17-node-002 ml-17-node-003",
        ),
        ("n[9-11]", "n9 n10 n11"),
        ("n[009-011]", "n009 n010 n011"),
        ("n[98-102]-ib", "n98-ib n99-ib n100-ib n101-ib n102-ib"),
        ("gpu-a.example.org", "gpu-a.example.org"),
        ("n1,n1", "n1 n1"),
        ("[1-2]", "1 2"),
        ("n1, n2\n", "n1 n2"),
        ("", ""),
        ("(null)", ""),
        ("None assigned", ""),
    ],
)
def test_e22_every_shape_of_a_list_is_written_out(hostlist: str, names: str) -> None:
    """Padding, single numbers, several brackets and text around them come out as Slurm means them."""
    assert expand(hostlist) == names.split()


@pytest.mark.parametrize(
    "hostlist",
    ["n[1-2", "n1-2]", "n[[1]]", "n[]", "n[2-1]", "n[a-b]", "n[1-999999999]", "n[1-1000]x[1-1000]"],
)
def test_malformed_and_monstrous_lists_are_refused(hostlist: str) -> None:
    """A list that is cut or absurd is an error, never a wrong set of nodes or gigabytes of names."""
    with pytest.raises(ValueError, match=r"nodes|brackets"):
        expand(hostlist)


_PREFIXES = st.text("abcdefgz-_", min_size=1, max_size=5).filter(lambda text: text[0] not in "-_")
_WIDTHS = st.integers(1, 4)


@st.composite
def _brackets(draw: st.DrawFn) -> tuple[str, list[str]]:
    """A bracket and the numbers in it, found by counting rather than by parsing."""
    width = draw(_WIDTHS)
    written, numbers = [], []
    for _ in range(draw(st.integers(1, 3))):
        low = draw(st.integers(0, 10**width - 1))
        high = draw(st.integers(low, min(low + 12, 10**width - 1)))
        single = low == high and draw(st.booleans())
        written.append(str(low).rjust(width, "0") if single else f"{low:0{width}d}-{high:0{width}d}")
        numbers += [str(number).rjust(width, "0") for number in range(low, high + 1)]
    return f"[{','.join(written)}]", numbers


@st.composite
def _items(draw: st.DrawFn) -> tuple[str, list[str]]:
    """A name with up to two brackets and what it stands for, by way of a plain product."""
    parts: list[tuple[str, list[str]]] = []
    for _ in range(draw(st.integers(0, 2))):
        prefix = draw(_PREFIXES)
        parts += [(prefix, [prefix]), draw(_brackets())]
    if not parts or draw(st.booleans()):
        suffix = draw(_PREFIXES)
        parts.append((suffix, [suffix]))
    text = "".join(written for written, _ in parts)
    return text, ["".join(chosen) for chosen in itertools.product(*(names for _, names in parts))]


@given(st.lists(_items(), min_size=1, max_size=4))
def test_lists_agree_with_a_reference_that_never_parses(items: list[tuple[str, list[str]]]) -> None:
    """Whatever is put together from ranges expands to exactly the names it was made of, in order."""
    assert expand(",".join(text for text, _ in items)) == [name for _, names in items for name in names]


def _is_slurms(item: tuple[str, list[str]]) -> bool:
    """Whether Slurm 22.05 understands the item too: it takes no text behind the last bracket."""
    return item[0].endswith("]") or "[" not in item[0]


@pytest.mark.skipif(shutil.which("scontrol") is None, reason="needs Slurm's own parser")
@settings(max_examples=25, deadline=None)
@given(items=st.lists(_items().filter(_is_slurms), min_size=1, max_size=3))
def test_e22_lists_agree_with_slurm(
    slurm_configuration: dict[str, str], items: list[tuple[str, list[str]]]
) -> None:
    """`scontrol show hostnames` says the same for every list."""
    text = ",".join(text for text, _ in items)
    said = subprocess.run(
        ["scontrol", "show", "hostnames", text],
        env=slurm_configuration,
        capture_output=True,
        text=True,
        check=True,
        timeout=20,
    )
    assert expand(text) == said.stdout.split()
