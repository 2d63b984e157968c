"""Which lines ran, marked by the code itself: tracing costs almost as much as the tests.

Before Python 3.12 the interpreter calls coverage's tracer for each line of any package.
With ``PYTEST_PLUGINS=tests.lines pytest --cov``, every statement of this one is preceded
by a store into a list, much as pytest rewrites asserts, and coverage gets what the lists
say before it saves; it combines and reports as ever. Processes that a test starts are
traced as before.
"""

from __future__ import annotations

import ast
import os
import sys
from collections.abc import Generator, Sequence
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import CodeType, ModuleType

import coverage
import pytest
from _pytest.assertion.rewrite import rewrite_asserts

PACKAGE = "sf_quantum"
# whose asserts pytest rewrites
TESTS = f"{PACKAGE}.testing"
_NAME = "__lines__"

# by file: for each line whether it ran
_ran: dict[str, list[int]] = {}


class _Loader(SourceFileLoader):
    """Loads a module whose statements mark their lines."""

    def get_code(self, fullname: str) -> CodeType:
        """Compile the marked module; the cache has the code of the other."""
        source = self.get_data(self.path)
        tree = ast.parse(source)
        for node in list(ast.walk(tree)):
            _mark(node)
        if fullname.startswith(TESTS):
            rewrite_asserts(tree, source, self.path)
        _ran[self.path] = [0] * (source.count(b"\n") + 2)
        code: CodeType = compile(tree, self.path, "exec", dont_inherit=True)
        return code

    def exec_module(self, module: ModuleType) -> None:
        """Run it with its list of lines."""
        code = self.get_code(module.__name__)
        setattr(module, _NAME, _ran[self.path])
        exec(code, vars(module))


class _Finder:
    """Finds the modules of the package that is measured."""

    @staticmethod
    def find_spec(
        name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Have a module of the package loaded by our loader."""
        if name.partition(".")[0] != PACKAGE:
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and isinstance(spec.loader, SourceFileLoader):
            spec.loader = _Loader(name, spec.loader.path)
        return spec


def _mark(node: ast.AST) -> None:
    """Let the statements of a block mark their lines."""
    for field in ("body", "orelse", "finalbody"):
        block = getattr(node, field, None)
        if isinstance(block, list):
            setattr(node, field, _marked(node, block))


def _marked(node: ast.AST, block: list[ast.stmt]) -> list[ast.stmt]:
    made: list[ast.stmt] = []
    # a clause is run when its block is
    if isinstance(node, ast.ExceptHandler):
        made.append(_store(node.lineno, block[0]))
    elif isinstance(node, ast.match_case):
        made.append(_store(node.pattern.lineno, block[0]))
    for statement in block:
        decorators: list[ast.expr] = getattr(statement, "decorator_list", [])
        lines = [*(each.lineno for each in decorators), statement.lineno]
        stores = [_store(line, statement) for line in lines]
        if isinstance(statement, ast.Expr) and isinstance(
            statement.value, ast.Constant
        ):
            # a docstring stays the first of its block, and is no line that runs
            made.append(statement)
        elif isinstance(statement, ast.ImportFrom) and statement.module == "__future__":
            made += [statement, *stores]
        else:
            made += [*stores, statement]
    return made


def _store(line: int, near: ast.stmt) -> ast.stmt:
    """Make the statement that marks a line."""
    marks = ast.Name(_NAME, ast.Load())
    cell = ast.Subscript(marks, ast.Constant(line), ast.Store())
    store = ast.copy_location(ast.Assign([cell], ast.Constant(1)), near)
    return ast.fix_missing_locations(store)


sys.meta_path.insert(0, _Finder)


class _Measure:
    """Takes the place of coverage's tracer."""

    _coverage: coverage.Coverage | None = None

    @pytest.hookimpl(trylast=True)
    def pytest_sessionstart(self) -> None:
        """Stop the tracer that pytest-cov has started."""
        self._coverage = coverage.Coverage.current()
        if self._coverage is not None:
            self._coverage.stop()

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_runtestloop(self) -> Generator[None, bool, bool]:
        """Tell coverage which lines ran, before pytest-cov has it save them."""
        # workers have started by now; a pytest that a test starts is not to measure
        os.environ.pop("PYTEST_PLUGINS", None)
        result = yield
        if self._coverage is not None:
            data = self._coverage.get_data()
            data.add_lines(
                {
                    path: [line for line, ran in enumerate(lines) if ran]
                    for path, lines in _ran.items()
                }
            )
        return result


def pytest_configure(config: pytest.Config) -> None:
    """Have the tracer replaced."""
    config.pluginmanager.register(_Measure())
