"""What each room may import, and where each library may be used."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from importlib.metadata import entry_points

import pytest

from tests.support.folders import ROOT

PACKAGE = ROOT / "sf_quantum"
MODULES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts): path
    for path in sorted(PACKAGE.rglob("*.py"))
    # these are files that `sfq init` copies
    if "templates" not in path.parts
}
GROUPS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]

# What modules of the foundation, and the plugin, may import of ours. The docstring of each
# room ends with what the room may import.
_FOUNDATION = {
    *("backoff", "deadline", "errors", "files", "registry", "structs", "text"),
    *("threads", "validation", "version", "yaml"),
}
LAYERS = {
    "backoff": set(),
    "deadline": set(),
    "errors": set(),
    "files": {"errors"},
    "registry": {"errors", "text"},
    "structs": {"files", "text"},
    "text": set(),
    "threads": set(),
    "validation": {"errors", "files", "text"},
    "version": set(),
    "yaml": {"errors", "files"},
    "plugin": {"candidates", "connectors", "journal"},
}
# Rooms whose folders are rooms of their own, with imports of their own.
_DIVIDED = ("checking", "service")
STREAMFLOW = {"plugin", "connectors", "candidates", "checking"}
# the scheduler that writes the journal, and what it alone uses
SCHEDULER = {
    f"sf_quantum.journal.{name}"
    for name in (
        *("scheduler", "feasibility", "steps", "run_record", "run_failure"),
        *("standstill", "reuse", "fingerprints"),
    )
}
# of these rooms, the modules that decide are free of the engine
PURE = (
    *("candidates.decision", "candidates.attempts", "candidates.history"),
    *(
        "connectors.slurm.allocation.forecast",
        "connectors.slurm.allocation.elastic_rules",
    ),
)
# by the files that may import them; dimod is the field's common format, nobody's own
_ATOMS = "service/device/emulator/atoms"
_CIRCUITS = "service/device/emulator/circuits"
_QASM = "openqasm programs supported scopes unrolling expressions syntax".split()
VENDORS: dict[str, tuple[str, ...]] = {
    "dwave": (
        *(f"qpu/vendors/dwave/{name}.py" for name in ("__init__", "client", "solver")),
        *("qpu/vendors/dwave/embedded.py", "qpu/vendors/embedding.py"),
        "samplers/neal.py",
    ),
    "minorminer": ("qpu/vendors/embedding.py",),
    "qrmi": ("qpu/vendors/qrmi.py",),
    **dict.fromkeys(
        ("pulser", "pulser_simulation"),
        (
            *("samplers/neutral_atom.py", "qpu/sdks/pulser.py"),
            *(f"{_ATOMS}/{name}.py" for name in ("device", "parsing", "simulation")),
        ),
    ),
    **dict.fromkeys(("emu_mps", "torch"), ("samplers/neutral_atom.py",)),
    "qiskit": (
        *("samplers/qaoa.py", "qpu/vendors/qrmi.py", "qpu/sdks/qiskit.py"),
        *("qpu/circuit_runner.py", "qpu/passes/zne.py"),
        *(f"{_CIRCUITS}/{name}.py" for name in ("openqasm", "aer", "batches", "noise")),
    ),
    "qiskit_aer": ("samplers/qaoa.py", f"{_CIRCUITS}/aer.py", f"{_CIRCUITS}/noise.py"),
    **dict.fromkeys(
        ("qiskit_qasm3_import", "openqasm3"),
        tuple(f"{_CIRCUITS}/{name}.py" for name in _QASM),
    ),
    "highspy": ("samplers/exact.py",),
    **dict.fromkeys(("braket", "ibm", "iqm", "pasqal_cloud"), ()),
    "pennylane": ("qpu/sdks/pennylane.py",),
    **dict.fromkeys(("cirq", "mitiq"), ("qpu/passes/zne.py",)),
    **dict.fromkeys(
        ("perceval", "exqalibur"),
        ("qpu/sdks/perceval.py", "service/device/emulator/photons/optics.py"),
    ),
}
# Largest class of the service: lines, and methods with properties.
MAX_CLASS_LINES, MAX_METHODS = 300, 25
OPENERS = {"open", "read_text", "read_bytes", "write_text", "write_bytes", "mkdir"}


def room(module: str) -> str:
    return module.split(".")[1] if "." in module else ""


@cache
def tree(module: str) -> ast.Module:
    return ast.parse(MODULES[module].read_text())


@cache
def nodes(module: str) -> list[ast.AST]:
    return list(ast.walk(tree(module)))


@cache
def imports(module: str) -> list[str]:
    """Every module imported, at the top or in a function, by its full name."""
    return list(_imports(module))


def _imports(module: str) -> Iterator[str]:
    for node in nodes(module):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}: relative import"
            assert node.module
            yield node.module
            if node.module == "sf_quantum":
                yield from (f"sf_quantum.{alias.name}" for alias in node.names)


def own(module: str) -> set[str]:
    """The rooms that a module imports."""
    names = {place(name) for name in imports(module) if name.startswith("sf_quantum.")}
    return {name for name in names if not name.startswith("__")}


def place(module: str) -> str:
    """The room of a module; those within _DIVIDED rooms are rooms of their own."""
    names = [*module.split("."), ""]
    inner = "/".join(names[1:3])
    return inner if inner in rooms() else names[1]


@cache
def rooms() -> dict[str, frozenset[str]]:
    """What each room may import of other rooms, as its docstring says."""
    found = {}
    within = [path for name in _DIVIDED for path in PACKAGE.glob(f"{name}/*/")]
    for path in sorted([*PACKAGE.glob("*/"), *within]):
        text = (
            ast.get_docstring(ast.parse(file.read_text()))
            if ((file := path / "__init__.py").exists())
            else None
        )
        if text is not None:
            name = path.relative_to(PACKAGE).as_posix()
            said = text.split("\n\nImports: ")
            assert len(said) == 2, f"{name}: its docstring ends with its imports"
            items = " ".join(said[1].split()).removesuffix(".")
            nothing = items == "nothing above the foundation"
            found[name] = frozenset(() if nothing else items.split(", "))
    return found


def test_imports_point_one_way() -> None:
    for module in MODULES:
        if (allowed := LAYERS.get(room(module))) is not None:
            assert own(module) <= allowed, module


def test_a_room_imports_what_its_docstring_says() -> None:
    """Neither more nor less, so that the list is the whole picture."""
    used: dict[str, set[str]] = {name: set() for name in rooms()}
    for module in MODULES:
        if (here := place(module)) in used:
            used[here] |= own(module) - {here} - _FOUNDATION
    for name, others in used.items():
        if name in _DIVIDED:
            others = {
                f"{name}/*" if one.startswith(f"{name}/") else one for one in others
            }
        assert others == rooms()[name], name
    assert not [name for name, allowed in rooms().items() if "cli" in allowed]


def test_the_foundation_imports_no_room() -> None:
    assert LAYERS.keys() >= _FOUNDATION
    for name in _FOUNDATION:
        assert LAYERS[name] <= _FOUNDATION, name


def test_planning_uses_only_the_rules_of_elastic_connectors() -> None:
    used = {
        name
        for module in MODULES
        if room(module) == "planning"
        for name in imports(module)
        if room(name) == "connectors"
    }
    rules = {
        "sf_quantum.connectors.slurm.allocation.forecast",
        "sf_quantum.connectors.slurm.allocation.elastic_rules",
    }
    assert used == rules


def test_no_module_imports_itself_through_others() -> None:
    """No circle of imports, those for type checkers alone included."""
    graph = {module: {*modules_imported(module)} for module in MODULES}
    for module, others in graph.items():
        others.discard(module)
    while leaves := [module for module, others in graph.items() if not others]:
        for leaf in leaves:
            del graph[leaf]
        for others in graph.values():
            others.difference_update(leaves)
    assert not graph, f"in a circle, or above one: {sorted(graph)}"


def modules_imported(module: str) -> Iterator[str]:
    """The modules that a module imports, also as names of their package."""
    for node in nodes(module):
        if isinstance(node, ast.ImportFrom) and node.module:
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found = {n: {n, f"{n}.__init__"} & MODULES.keys() for n in names}
            yield from (module for modules in found.values() for module in modules)
            package = f"{node.module}.__init__"
            if not all(found.values()):
                yield from {node.module, package} & MODULES.keys()


def test_streamflow_stays_in_its_rooms() -> None:
    for module in MODULES:
        pure = module.removeprefix("sf_quantum.") in PURE
        if module not in SCHEDULER and (pure or room(module) not in STREAMFLOW):
            assert "streamflow" not in {
                n.split(".")[0] for n in imports(module)
            }, module


def test_the_decision_on_a_target_reads_no_clock() -> None:
    assert not {"time", "datetime"} & {*imports("sf_quantum.candidates.decision")}


def test_a_vendor_stays_in_its_own_file() -> None:
    for module, path in MODULES.items():
        here = path.relative_to(PACKAGE).as_posix()
        for name in imports(module):
            assert here in VENDORS.get(name.split(".")[0], (here,)), (module, name)


def test_the_rules_name_modules_that_exist() -> None:
    """A rule about a module that has moved would check nothing."""
    files = {path.relative_to(PACKAGE).as_posix() for path in MODULES.values()}
    assert {path for paths in VENDORS.values() for path in paths} <= files
    assert {f"sf_quantum.{name}" for name in PURE} | SCHEDULER <= MODULES.keys()
    assert LAYERS.keys() | STREAMFLOW <= {room(module) for module in MODULES}


def test_a_module_says_what_it_is_for() -> None:
    for module in MODULES:
        body = tree(module).body
        assert ast.get_docstring(tree(module)), module
        # the package's own file holds nothing but the version
        if any(not isinstance(node, ast.Assign) for node in body[1:]):
            assert ast.unparse(body[1]) == "from __future__ import annotations", module


def test_a_class_of_the_service_is_one_idea() -> None:
    """A larger class holds two, each of which has data of its own."""
    classes = [
        (module, node)
        for module in MODULES
        if room(module) == "service"
        for node in nodes(module)
        if isinstance(node, ast.ClassDef)
    ]
    assert classes
    functions = ast.FunctionDef | ast.AsyncFunctionDef
    for module, node in classes:
        lines = (node.end_lineno or 0) - node.lineno + 1
        methods = sum(isinstance(part, functions) for part in node.body)
        assert lines <= MAX_CLASS_LINES, (module, node.name, lines)
        assert methods <= MAX_METHODS, (module, node.name, methods)


def test_sql_has_no_numbered_placeholders() -> None:
    """Python 3.14 takes no sequence of values for them; 3.11 says nothing."""
    numbered = re.compile(r"[=,(]\s*\?\d")
    for module in MODULES:
        for node in nodes(module):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                assert not numbered.search(node.value), (module, node.value)


def test_only_the_command_prints() -> None:
    for module in MODULES:
        if room(module) != "cli":
            calls = [node for node in nodes(module) if isinstance(node, ast.Call)]
            assert "print" not in {ast.unparse(call.func) for call in calls}, module


def test_nothing_is_opened_at_import() -> None:
    for module in MODULES:
        for call in at_import(tree(module)):
            name = ast.unparse(call.func).split(".")[-1]
            assert name not in OPENERS, (module, ast.unparse(call))


def at_import(node: ast.AST) -> Iterator[ast.Call]:
    """The calls that are made when a module is imported: those outside functions."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Call):
            yield child
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            for default in [*child.args.defaults, *child.args.kw_defaults]:
                yield from at_import(ast.Expr(default)) if default else ()
        else:
            yield from at_import(child)


@pytest.mark.parametrize(
    ("group", "name"),
    [(group, name) for group, names in GROUPS.items() for name in names],
)
def test_every_entry_point_loads(group: str, name: str) -> None:
    (entry,) = entry_points(group=group, name=name)
    assert entry.value == GROUPS[group][name], "install again: the entry point is new"
    # The command has a function; all other entries are classes.
    assert isinstance(entry.load(), type) or group == "sf_quantum.commands"


@pytest.mark.process
def test_help_imports_nothing_heavy() -> None:
    """``sfq --help`` starts in 0.15 s only without these."""
    code = (
        "import sys; from sf_quantum.cli import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: print(*sys.modules, file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    heavy = {"numpy", "dimod", "streamflow", "matplotlib", "fastapi", "simpy"}
    assert not heavy & set(done.stderr.split())


@pytest.mark.process
def test_service_starts_without_dimod_and_numpy() -> None:
    """They take 0.3 s and 37 MB, and the first job that needs them imports them."""
    code = "import sys; import sf_quantum.service.run; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert not {"dimod", "networkx", "numpy"} & set(done.stdout.split())
