"""What docstrings and comments refer to exists."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.support.folders import ROOT

PACKAGE = ROOT / "sf_quantum"
FILES = [path for path in PACKAGE.rglob("*.py") if "templates" not in path.parts]
ROOMS = [path.parent for path in FILES if path.name == "__init__.py"]
# lower-case words in rooms' docstrings that are commands, or keys of files
WORDS = {"sfq", "sacct", "sinfo", "squeue", "time", "event"}
_ROLE = re.compile(r":(?:mod|class|func|meth|attr|data):`~?([\w.]+)`")


def module(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(part for part in parts if part != "__init__")


@cache
def names(path: Path) -> frozenset[str]:
    """What a file defines, by its full name; attributes are those of its classes."""
    return frozenset(_names(module(path), ast.parse(path.read_text())))


def _names(prefix: str, node: ast.AST) -> Iterator[str]:
    yield prefix
    is_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _names(f"{prefix}.{child.name}", child)
            continue
        for one in ast.walk(child):
            match one:
                case ast.Attribute(attr=name, ctx=ast.Store()) if is_function:
                    yield f"{prefix.rpartition('.')[0]}.{name}"
                case ast.Name(id=name, ctx=ast.Store()) if not is_function:
                    yield f"{prefix}.{name}"


@pytest.mark.parametrize("room", ROOMS, ids=lambda room: module(room))
def test_a_rooms_docstring_names_modules_that_exist(room: Path) -> None:
    text = ast.get_docstring(ast.parse((room / "__init__.py").read_text())) or ""
    modules = {path.stem for path in room.iterdir() if path.suffix in ("", ".py")}
    functions = {
        name.rpartition(".")[2] for path in room.rglob("*.py") for name in names(path)
    }
    words = {*re.findall(r"``([a-z_]+)``", text)} - modules - WORDS
    assert words <= functions, words - functions


def test_the_docstring_of_a_divided_room_names_its_parts() -> None:
    """So that a reader finds a module without opening the others."""
    missing = []
    for room in ROOMS:
        text = ast.get_docstring(ast.parse((room / "__init__.py").read_text())) or ""
        parts = {path.stem for path in room.glob("*.py") if path.stem[0] != "_"}
        parts |= {path.parent.name for path in room.glob("*/__init__.py")}
        named = {*re.findall(r"``([a-z_0-9]+)``", text)}
        if len(parts) > 2 and room != PACKAGE and not parts <= named:
            missing.append((module(room / "__init__.py"), sorted(parts - named)))
    assert not missing


def test_references_of_docstrings_exist() -> None:
    every = frozenset[str]().union(*map(names, FILES))
    ends = {f".{name.split('.', index)[-1]}" for name in every for index in range(1, 7)}
    wrong = []
    for path in FILES:
        for reference in _ROLE.findall(path.read_text()):
            ours = reference.startswith(("sf_quantum.", "."))
            if (
                ours
                and f".{reference.removeprefix('sf_quantum.').lstrip('.')}" not in ends
            ):
                wrong.append((module(path), reference))
    assert not wrong
