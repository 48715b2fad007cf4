"""The shape of the code: small modules and functions, plain names, one way to import."""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("engine", "infrarsi_tui", "slurm")
PRODUCT = (*PACKAGES, "sample_tasks")
LONGEST_MODULE = 500
TYPICAL_MODULE = 150
LONGEST_FUNCTION = 60
VAGUE_NAMES = {"utils", "util", "helpers", "helper", "common", "misc"}
# Where a checkout happens to lie, and what helped to write it, is no part of the product.
FOREIGN = re.compile(r"(?<![\w/.])/wo" + r"rk/|\.\./sha" + r"red|\bspi" + r"ke", re.IGNORECASE)


def _modules(*folders: str) -> list[Path]:
    return [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]


def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def _functions(tree: ast.Module) -> Iterator[tuple[str, int]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name, (node.end_lineno or node.lineno) - node.lineno + 1


def _lines(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


def test_the_gates_see_the_code() -> None:
    """The next tests run over the whole product."""
    found = {path.relative_to(ROOT).parts[0] for path in _modules(*PRODUCT)}
    assert found == set(PRODUCT)
    assert len(_modules(*PRODUCT)) > 100


def test_modules_are_short() -> None:
    """No module is longer than 500 lines, and the typical one fits on a few screens."""
    long = {str(path): _lines(path) for path in _modules(*PRODUCT, "tests") if _lines(path) > LONGEST_MODULE}
    assert long == {}
    sizes = sorted(_lines(path) for path in _modules(*PACKAGES) if path.name != "__init__.py")
    assert sizes[len(sizes) // 2] <= TYPICAL_MODULE


def test_functions_are_short() -> None:
    """No function of the product is longer than 60 lines, its docstring included."""
    long = {
        f"{path.relative_to(ROOT)}:{name}": length
        for path in _modules(*PRODUCT)
        for name, length in _functions(_tree(path))
        if length > LONGEST_FUNCTION
    }
    assert long == {}


def test_no_module_has_a_vague_name() -> None:
    """A module is named by what it does; whatever is in `utils` belongs somewhere."""
    parts = {part for path in _modules(*PRODUCT) for part in path.relative_to(ROOT).with_suffix("").parts}
    assert parts & VAGUE_NAMES == set()


def test_package_files_hold_a_docstring_only() -> None:
    """`__init__.py` says what the package is for; code lies in modules with names."""
    for path in _modules(*PRODUCT):
        if path.name == "__init__.py":
            assert len(_tree(path).body) == 1, path
            assert ast.get_docstring(_tree(path)), path


def test_every_package_folder_is_a_package() -> None:
    """A folder with modules has its `__init__.py`, so that no wheel and no checker passes it over."""
    payload = ROOT / "engine" / "probe" / "payload"
    for folder in {path.parent for path in _modules(*PACKAGES)} - {payload}:
        assert (folder / "__init__.py").is_file(), folder


def test_tests_are_no_packages() -> None:
    """Tests are found by path; nothing under tests/ is shipped or imported by the product."""
    assert list((ROOT / "tests").rglob("__init__.py")) == []


def test_imports_are_absolute() -> None:
    """Generic package names must be visible at every import line."""
    for path in _modules(*PRODUCT, "tests"):
        relative = [node for node in ast.walk(_tree(path)) if isinstance(node, ast.ImportFrom) and node.level]
        assert relative == [], path


def test_every_module_says_what_it_is_for() -> None:
    """Each module of the product has a docstring."""
    missing = [str(path) for path in _modules(*PRODUCT) if not ast.get_docstring(_tree(path))]
    assert missing == []


def test_asserts_are_not_used_for_control() -> None:
    """`assert` vanishes under -O, so the product raises instead."""
    for path in _modules(*PACKAGES):
        asserts = [node.lineno for node in ast.walk(_tree(path)) if isinstance(node, ast.Assert)]
        assert asserts == [], path


def test_text_speaks_of_the_product_alone() -> None:
    """No tracked text names a place outside the repository."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    if listed.returncode:
        pytest.skip("not a git checkout")
    found = []
    for name in listed.stdout.splitlines():
        try:
            text = (ROOT / name).read_text(encoding="utf-8")
        except (UnicodeDecodeError, FileNotFoundError, IsADirectoryError):
            continue
        found += [f"{name}: {match.group()}" for match in FOREIGN.finditer(text)]
    assert found == []
