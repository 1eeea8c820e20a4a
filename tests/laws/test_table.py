"""docs/LAWS.md names tests that exist, and every test that breaks a law by design stands in it."""

from __future__ import annotations

import ast
import importlib
import re
from pathlib import Path
from typing import Any

import pytest

TESTS = Path(__file__).parents[1]
PAGE = (TESTS.parent / "docs" / "LAWS.md").read_text()
ROWS = [
    [cell.strip() for cell in line.strip("|").split(" | ")]
    for line in PAGE.splitlines()
    if line.startswith("|") and "::" in line
]
NAMED = [row[3].strip("` |") for row in ROWS]
LAWS = ["conservation", "isolation", "bounds", "CP plans", "determinism", "atomicity",
        "integrity", "bounded memory"]  # fmt: skip


def cases_of(function: Any) -> set[str]:
    """The names of a test's cases that are told apart by one string."""
    marks = [mark for mark in getattr(function, "pytestmark", []) if mark.name == "parametrize"]
    return {value for mark in marks for value in mark.args[1] if isinstance(value, str)}


@pytest.mark.parametrize("name", NAMED)
def test_a_test_that_is_named_exists(name: str) -> None:
    path, case = re.fullmatch(r"(.*?)(?:\[(.*)\])?", name).groups()  # type: ignore[union-attr]
    file, *names = path.split("::")
    found: Any = importlib.import_module("tests." + file.removesuffix(".py").replace("/", "."))
    for part in names:
        found = getattr(found, part)
    assert callable(found)
    assert names[-1].startswith("test_")
    assert case is None or case in cases_of(found)


def test_every_law_and_no_clause_twice() -> None:
    assert [row[0] for row in ROWS if row[0]] == [f"{i} {law}" for i, law in enumerate(LAWS, 1)]
    assert len(NAMED) == len(set(NAMED)) > 80
    finders = {"verify", "reader", "planner", "build", "trainer", "tests"}
    assert {row[2] for row in ROWS} == finders


def test_every_test_that_breaks_a_law_is_named() -> None:
    listed = {name.partition("[")[0] for name in NAMED}
    for path in sorted((TESTS / "laws").glob("test_*.py")):
        tree = ast.parse(path.read_text())
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef) and re.search(r"_(found|noticed)$", node.name):
                assert any(name.endswith(f"::{node.name}") for name in listed), node.name
