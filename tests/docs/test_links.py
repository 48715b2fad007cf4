"""Pages lead to what exists."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.pages import ROOT, anchors, links, make_targets, name_of, pages

REQUIRED = {
    "README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "engine/README.md",
    "infrarsi_tui/README.md",
    "slurm/README.md",
    "experience_store/README.md",
    "tests/README.md",
}


def test_the_pages_are_found() -> None:
    """The pages a stranger needs are there."""
    assert {name_of(page) for page in pages()} >= REQUIRED


@pytest.mark.parametrize("page", pages(), ids=name_of)
def test_relative_links_exist(page: Path) -> None:
    """Every link inside the repository leads to a file, and its anchor to a heading."""
    for link in links(page):
        if "://" in link or link.startswith("mailto:"):
            continue
        target, _, anchor = link.partition("#")
        path = (page.parent / target).resolve() if target else page
        assert path.is_relative_to(ROOT), f"{link} leads out of the repository"
        assert path.exists(), f"{link} leads nowhere"
        if anchor:
            assert anchor in anchors(path), f"{link} has no heading"


@pytest.mark.parametrize("page", pages(), ids=name_of)
def test_make_targets_exist(page: Path) -> None:
    """`make` targets that a page names are those of the Makefile."""
    lines = (ROOT / "Makefile").read_text(encoding="utf-8").splitlines()
    known = {
        name
        for line in lines
        if line[:1].isalpha() and ":" in line and ":=" not in line
        for name in line.partition(":")[0].split()
    }
    assert make_targets(page) <= known


def test_readme_is_short() -> None:
    """The first page is an entrance, not a manual."""
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 180


def test_the_contributors_page_names_every_gate() -> None:
    """Each target of the Makefile's gates is explained."""
    named = make_targets(ROOT / "CONTRIBUTING.md")
    assert named >= {"test", "quick", "check", "measure", "wheel", "run"}
