"""What docstrings and comments refer to exists."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from pkgutil import resolve_name

import pytest

from tests.support.folders import ROOT

PACKAGE = ROOT / "sf_quantum"
FILES = [path for path in PACKAGE.rglob("*.py") if "templates" not in path.parts]
TESTS = [*(ROOT / "tests").rglob("*.py")]
ROOMS = [path.parent for path in FILES if path.name == "__init__.py"]
# lower-case words in rooms' docstrings that are commands, or keys of files
WORDS = {"sfq", "sacct", "sinfo", "squeue", "time", "event"}
_ROLE = re.compile(
    r":(?:mod|class|func|meth|attr|data|exc):`(?:[^`<]*<)?[~!.]*([\w.]+)>?`"
)
Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
_PARAM = re.compile(r":param (\w+):")


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
        if isinstance(child, Definition):
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


def is_elsewhere(reference: str) -> bool:
    """Whether a reference is to a module of Python or of another package, or inside it."""
    with suppress(ImportError, AttributeError, ValueError):
        resolve_name(reference)
        return True
    return False


@pytest.mark.parametrize("files", [FILES, TESTS], ids=["package", "tests"])
def test_references_of_docstrings_exist(files: list[Path]) -> None:
    every = frozenset[str]().union(*map(names, {*FILES, *files}))
    ends = {".".join(name.split(".")[at:]) for name in every for at in range(7)}
    wrong = [
        (module(path), reference)
        for path in files
        for reference in _ROLE.findall(path.read_text())
        if reference not in ends and not is_elsewhere(reference)
    ]
    assert not wrong


def definitions(path: Path) -> Iterator[Definition]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, Definition):
            yield node


def parameters(node: ast.AST, classes: Mapping[str, ast.ClassDef]) -> Iterator[str]:
    """Names that a docstring may describe, also those of the fields of a class's bases."""
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            yield from (
                one.arg for one in ast.walk(node.args) if isinstance(one, ast.arg)
            )
        case ast.ClassDef():
            for one in node.body:
                match one:
                    case ast.AnnAssign(target=ast.Name(id=name)):
                        yield name
                    case ast.Assign(targets=[ast.Name(id=name)]):
                        yield name
                    case ast.FunctionDef(name="__init__" | "__new__"):
                        yield from parameters(one, classes)
            for base in node.bases:
                name = ast.unparse(base).partition("[")[0].rpartition(".")[2]
                if name in classes:
                    yield from parameters(classes[name], classes)


def test_docstrings_describe_only_parameters_that_exist() -> None:
    files = [path for path in [*FILES, *TESTS] if ":param " in path.read_text()]
    nodes = [(path, node) for path in files for node in definitions(path)]
    classes = {node.name: node for _, node in nodes if isinstance(node, ast.ClassDef)}
    wrong = []
    for path, node in nodes:
        if described := _PARAM.findall(ast.get_docstring(node) or ""):
            unknown = {*described} - {*parameters(node, classes)}
            wrong += [(module(path), node.name, name) for name in unknown]
    assert not wrong
