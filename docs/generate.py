"""Write what the reference's pages say of commands, keys and HTTP paths, from the code.

``python -m docs.generate`` writes it into the pages, between two marks, so that a page is
whole wherever it is read; a test fails where a page does not say what the code does. It also
writes the JSON schema of workload files, whose descriptions are those of the classes.
"""

from __future__ import annotations

import argparse
import ast
import functools
import importlib
import inspect
import json
import re
import subprocess
import sys
import textwrap
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import files
from inspect import getmembers, isfunction
from itertools import chain, zip_longest
from pathlib import Path
from types import ModuleType
from typing import TypeAlias, cast, get_type_hints

from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema
from starlette.routing import Route

from sf_quantum.cli import COMMANDS
from sf_quantum.files import JSON
from sf_quantum.net.transport import Client
from sf_quantum.planning.simulation.strategies import (
    CoScheduled,
    Elastic,
    PerStep,
    Reserved,
)
from sf_quantum.planning.workloads import workload
from sf_quantum.service.config import Configuration
from sf_quantum.service.dialects import dialect
from sf_quantum.service.queue.jobs import job_states
from sf_quantum.service.queue.leases import lease_states
from sf_quantum.validation import Section

Schema: TypeAlias = dict[str, JSON]
DOCS = Path(__file__).parent
BEGIN = "<!-- generated from the code by `python -m docs.generate` -->"
END = "<!-- end of the generated part -->"
# a block that has the text of a file, of an object in it, or from one text to another
COPY = re.compile(
    r'(<!-- same as (?P<file>[^\s,]+)(?:, (?P<name>[\w.]+)|, from "(?P<from>.+?)" to "(?P<to>.+?)")?'
    r" -->\n```\w+\n).*?(```\n)",
    re.DOTALL,
)
METHODS = ("get", "post", "put", "patch", "delete")
# the dialects of the OpenAPI document, by how their paths start; the last has the others
DIALECTS = {
    "/v1": "The service's own dialect, `/v1`",
    "/metrics": "Metrics for Prometheus",
    "/": "Warden's dialect",
}
# what StreamFlow calls them, and where their schemas are
STREAMFLOW_TYPES = {
    "sfq.emulator": "connectors/schemas/emulator.json",
    "sfq.rest": "connectors/schemas/rest.json",
    "sfq.slurm": "connectors/slurm/schema.json",
    "sfq.nodes": "connectors/schemas/nodes.json",
    "sfq.ssh": "connectors/schemas/ssh.json",
    "sfq.candidate": "candidates/schemas/candidate.json",
    "sfq.journal": "schemas/journal.json",
}


def write_pages() -> None:
    """Write the generated part of every page; a page that is true keeps its date."""
    for path, text in pages():
        if path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")


def pages() -> Iterator[tuple[Path, str]]:
    """Each page with generated parts or copies, and the text that it is to have."""
    texts = {path: path.read_text("utf-8") for path in sorted(DOCS.glob("*/*.md"))}
    for path, text in {**texts, **dict(_generated())}.items():
        if (copied := COPY.sub(_copied, text)) != texts[path] or COPY.search(text):
            yield path, copied


def _copied(block: re.Match[str]) -> str:
    """Fill a block with the text of its file, which is readable without Sphinx."""
    text = (DOCS.parent / block["file"]).read_text("utf-8")
    if block["name"]:
        node: ast.AST = ast.parse(text)
        for name in block["name"].split("."):
            (node,) = (
                one
                for one in ast.iter_child_nodes(node)
                if isinstance(one, ast.ClassDef | ast.FunctionDef) and one.name == name
            )
        text = ast.get_source_segment(text, node, padded=True) or ""
    elif block["from"]:
        text = text[text.index(block["from"]) :]
        text = text[: text.index(block["to"])]
    return f"{block[1]}{textwrap.dedent(text).strip(chr(10))}\n{block[6]}"


def _generated() -> Iterator[tuple[Path, str]]:
    """Each page with generated parts, and its text with these."""
    parts: Mapping[str, Sequence[Iterator[str]]] = {
        "reference/commands.md": [commands()],
        "reference/streamflow.md": [streamflow_keys()],
        "reference/service.md": [service_keys()],
        "reference/plan.md": [plan_keys()],
        "reference/http.md": [dialects(), http_paths(openapi())],
        "explanation/architecture.md": [
            rooms(),
            chain(states(job_states, "a job"), states(lease_states, "a lease")),
        ],
    }
    for name, contents in parts.items():
        path = DOCS / name
        between = re.split(f"{BEGIN}.*?{END}", path.read_text("utf-8"), flags=re.DOTALL)
        if len(between) != len(contents) + 1:
            marks = f"the lines {BEGIN!r} and {END!r}"
            raise ValueError(f"{path}: expected {marks}, {len(contents)} times")
        texts = ["\n".join(lines).rstrip() for lines in contents]
        marked = [f"{BEGIN}\n\n{text}\n\n{END}" for text in texts]
        pairs = zip_longest(between, marked, fillvalue="")
        yield path, "".join(text for pair in pairs for text in pair)


def commands() -> Iterator[str]:
    """Describe every command of ``sfq`` from its argument parser."""
    for name, (folder, summary) in COMMANDS.items():
        module = importlib.import_module(f"sf_quantum.cli.{folder}.{name}")
        parser = argparse.ArgumentParser(f"sfq {name}")
        module.configure(parser)
        yield from command(parser, summary, level=2)


def command(parser: argparse.ArgumentParser, summary: str, level: int) -> Iterator[str]:
    """Describe a command and the commands below it."""
    yield from (f"{'#' * level} `{parser.prog}`", "", f"{_sentence(summary)}", "")
    yield from ("```text", usage(parser), "```", "")
    below: list[tuple[argparse.ArgumentParser, str]] = []
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            helps = {one.dest: one.help for one in action._choices_actions}
            below = [
                (sub, helps.get(name) or name) for name, sub in action.choices.items()
            ]
        elif not isinstance(action, argparse._HelpAction):
            yield from option(parser, action)
    yield ""
    if parser.epilog:
        yield from (parser.epilog % {"prog": parser.prog}, "")
    for sub, text in below:
        yield from command(sub, text, level + 1)


def usage(parser: argparse.ArgumentParser) -> str:
    """Return a command's usage, which no terminal's width breaks into lines."""
    # as wide as any usage, so that every Python's argparse leaves the lines to textwrap
    parser.formatter_class = functools.partial(argparse.HelpFormatter, width=10**6)
    text = parser.format_usage().removeprefix("usage: ").rstrip()
    return textwrap.fill(
        text, 98, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
    )


def option(parser: argparse.ArgumentParser, action: argparse.Action) -> Iterator[str]:
    """Describe an option or an argument as an entry of a list."""
    name = action.dest.upper() if action.option_strings else action.dest
    value = parser._get_formatter()._format_args(action, name)
    spelled = [f"{flag} {value}".rstrip() for flag in action.option_strings] or [value]
    names = ", ".join(f"`{one}`" for one in spelled)
    help_ = parser._get_formatter()._expand_help(action) if action.help else ""
    if action.choices and not help_:
        help_ = f"one of {', '.join(map(str, action.choices))}"
    yield f"- {names}: {_sentence(help_) if help_ else '(no description)'}"


def streamflow_keys() -> Iterator[str]:
    """Describe the keys of each of our StreamFlow types from its JSON schema."""
    for name, path in STREAMFLOW_TYPES.items():
        schema = read_schema(path)
        yield from (f"## `{name}`", "", f"{schema['description']}.", "")
        yield from key_table(schema, schema)
        if name == "sfq.slurm":
            yield from slurm_keys(schema)


def slurm_keys(schema: Schema) -> Iterator[str]:
    """Describe what the connector for Slurm takes from StreamFlow's."""
    folder = files("streamflow.deployment.connector").joinpath("schemas")
    manager = _mapping(
        json.loads(folder.joinpath("base/queue_manager.json").read_text())
    )
    theirs = _mapping(json.loads(folder.joinpath("slurm.json").read_text()))
    yield from ("### StreamFlow's keys of the connector", "")
    yield from key_table(manager, manager)
    yield from ("### Keys of a StreamFlow service", "")
    yield from key_table(_mapping(_mapping(schema["$defs"])["service"]), schema)
    yield from ("### StreamFlow's keys of a service", "")
    yield from key_table(_mapping(_mapping(theirs["$defs"])["service"]), theirs)


def service_keys() -> Iterator[str]:
    """Describe the keys of the service's configuration from its model."""
    schema = cast("Schema", Configuration.model_json_schema(schema_generator=_Lenient))
    # a model's schema has its own docstring, and not those of the models it is made of
    schema["description"] = "\n".join(
        f":param{fields}"
        for model in Configuration.__mro__
        for fields in inspect.cleandoc(model.__doc__ or "").split("\n:param")[1:]
    )
    yield from key_table(schema, schema)


# what the lists of a workload file have as elements
PLAN_LISTS: Mapping[str, type[Section]] = {
    "applications.<name>.phases": workload.Phase,
    "qpus.<name>.maintenance": workload.Maintenance,
    "background.jobs": workload.BackgroundJobs,
    "background.quantum": workload.BackgroundQuantum,
    "background.traces": workload.Trace,
    "background.quantum_traces": workload.QuantumTrace,
    "background.quantum_usage": workload.QuantumUsage,
}
STRATEGIES: tuple[type[Section], ...] = (CoScheduled, Reserved, PerStep, Elastic)


def plan_keys() -> Iterator[str]:
    """Describe the keys of a workload file from its model."""
    yield from ("## Keys of the file", "")
    schema = cast("Schema", workload.Workload.model_json_schema())
    yield from key_table(schema, schema)
    for name, model in PLAN_LISTS.items():
        yield from (f"## Elements of `{name}`", "")
        yield from _plan_table(model)
    yield from ("## Elements of `strategies`", "")
    for model in STRATEGIES:
        type_ = model.model_fields["type"].default
        yield from (f"### `{type_}`", "")
        yield from _plan_table(model)


def _plan_table(model: type[Section]) -> Iterator[str]:
    schema = cast("Schema", model.model_json_schema())
    # a model's schema has its own docstring, and not those of the models it is made of
    of_bases = (
        f"\n:param{fields}"
        for base in model.__mro__[1:]
        for fields in inspect.cleandoc(base.__doc__ or "").split("\n:param")[1:]
        if issubclass(base, Section)
    )
    schema["description"] = f"{schema['description']}{''.join(of_bases)}"
    yield from (f"{summary(schema)}.", "")
    yield from key_table(schema, schema)


def write_workload_schema() -> None:
    """Write the schema of workload files into the package."""
    path = DOCS.parent / "sf_quantum" / "planning" / "schemas" / "workload.json"
    path.write_text(json.dumps(workload_schema(), indent=2) + "\n")


def workload_schema() -> Schema:
    """The JSON schema of workload files, for editors, with a description of each key."""
    schema = cast("Schema", workload.Workload.model_json_schema())
    for model in (schema, *map(_mapping, _mapping(schema["$defs"]).values())):
        documented = parameters(model)
        for name, key in _mapping(model.get("properties", {})).items():
            if name in documented:
                _mapping(key)["description"] = documented[name]
        if "description" in model:
            model["description"] = summary(model)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": "urn:sf-quantum:schemas:planning:workload",
        **schema,
    }


class _Lenient(GenerateJsonSchema):
    """A key that a function of ours reads may have any value."""

    def handle_invalid_for_json_schema(
        self, schema: core_schema.CoreSchema, error_info: str
    ) -> JsonSchemaValue:
        return {}


def key_table(schema: Schema, root: Schema) -> Iterator[str]:
    """Describe the keys of an object, one row each."""
    yield from ("| key | values | default | meaning |", "|---|---|---|---|")
    for name, key in keys(schema, root):
        default = key.get("default")
        shown = (
            f"`{json.dumps(default)}`"
            if "default" in key and not isinstance(default, dict)
            else ""
        )
        cells = (f"`{name}`", values(key, root), shown, _text(key.get("description")))
        yield f"| {' | '.join(cell.replace('|', '&#124;') for cell in cells)} |"
    yield ""


def keys(schema: Schema, root: Schema, above: str = "") -> Iterator[tuple[str, Schema]]:
    """Every key of an object and of the objects in it, by its dotted name."""
    documented = parameters(schema)
    for name, content in _mapping(schema.get("properties", {})).items():
        key = resolved(_mapping(content), root)
        text = documented.get(name) or summary(key)
        if text or not name.startswith("<"):
            yield f"{above}{name}", {**key, "description": text}
        for inner in inner_objects(key, root):
            yield from keys(inner, root, f"{above}{name}.")


def parameters(schema: Schema) -> dict[str, str]:
    """What the docstring of a model says of its keys."""
    _, *fields = re.split(r"^:param ", str(schema.get("description", "")), flags=re.M)
    split = (field.partition(":") for field in fields)
    return {name: _capital(_plain(text)) for name, _, text in split}


def summary(schema: Schema) -> str:
    """What a schema, or the docstring of a model, says first."""
    text = _text(schema.get("description")).partition(" :param ")[0]
    return _plain(text)


def _plain(text: str) -> str:
    """Write a docstring's marks as Markdown, without the last full stop."""
    text = " ".join(text.split()).removesuffix(".")
    text = re.sub(r":\w+:`~?(?:[\w.]*\.)?(\w+)`", r"`\1`", text).replace("``", "`")
    return text.replace("`None`", "`null`")


def _capital(text: str) -> str:
    return text if re.match(r"\w+:", text) else text[:1].upper() + text[1:]


def inner_objects(key: Schema, root: Schema) -> Iterator[Schema]:
    """The objects that a key's value may be, except maps from names of the user's."""
    if key.get("title") == "Services":
        return
    alternatives = [key, *_listing(key.get("oneOf")), *_listing(key.get("anyOf"))]
    for one in alternatives:
        found = resolved(_mapping(one), root)
        if "properties" in found:
            yield found
        for inner in _mapping(found.get("patternProperties", {})).values():
            yield {"properties": {"<name>": inner}}
        inner = found.get("additionalProperties")
        if isinstance(inner, dict) and "$ref" in inner:
            yield {"properties": {"<name>": inner}}


def values(key: Schema, root: Schema) -> str:
    """What a key may be, in a few words."""
    key = resolved(key, root)
    if "const" in key:
        return f"`{key['const']}`"
    if "enum" in key:
        return ", ".join(f"`{_literal(one)}`" for one in _listing(key["enum"]))
    for name in ("oneOf", "anyOf"):
        if name in key and key.get("type") is None:
            found = [values(_mapping(one), root) for one in _listing(key[name])]
            return " or ".join(dict.fromkeys(found))
    kind = str(key.get("type", "any"))
    if kind == "array":
        inner = values(_mapping(key.get("items", {})), root)
        return f"list of {inner}" if inner != "any" else "list"
    return {"object": "mapping", "null": "`null`"}.get(kind, kind) + _bounds(key)


def resolved(key: Schema, root: Schema) -> Schema:
    """Follow a reference within the document; what stands beside it wins."""
    reference = key.get("$ref")
    if not isinstance(reference, str) or not reference.startswith("#/$defs/"):
        return key
    found = _mapping(_mapping(root["$defs"])[reference.removeprefix("#/$defs/")])
    return {**resolved(found, root), **{k: v for k, v in key.items() if k != "$ref"}}


def openapi() -> Schema:
    """The service's own description of its paths, asked of a running service."""
    run = "import sys; from sf_quantum.cli import main; sys.exit(main(sys.argv[1:]))"
    with subprocess.Popen(
        [sys.executable, "-c", run, "serve", "--until-eof"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as service:
        if service.stdin is None or service.stdout is None:
            raise RuntimeError("the service has no pipes")
        url = json.loads(service.stdout.readline())["url"]
        # on a busy machine, its first description takes a while
        client = Client(url, {})
        document = client.request("GET", "/openapi.json", timeout_seconds=100).json()
        service.stdin.close()
    return document


def rooms() -> Iterator[str]:
    """Describe each folder of the package from the docstring of its ``__init__``."""
    package = DOCS.parent / "sf_quantum"
    yield "| room | what is in it | imports |"
    yield "|---|---|---|"
    for file in sorted(package.rglob("__init__.py")):
        name = file.parent.relative_to(package).as_posix()
        text = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
        if name == "." or "templates" in file.parts:
            continue
        content, _, imports = text.partition("\n\nImports: ")
        summary = " ".join(content.split("\n\n")[0].split()).removesuffix(".")
        summary = summary.replace("``", "`")
        imported = " ".join(imports.split()).removesuffix(".")
        yield f"| `{name}/` | {summary} | {imported} |"


def states(module: ModuleType, what: str) -> Iterator[str]:
    """List the states in a module's table, and the events that end each of them."""
    yield f"| state of {what} | meaning | event: next state |"
    yield "|---|---|---|"
    for state in module.TRANSITIONS:
        meaning = (state.__doc__ or "").partition(".\n")[0].removesuffix(".")
        meaning = " ".join(meaning.split()).replace("``", "`")
        moves = (
            f"`{event}`: {after.__name__}"
            for event, after in transitions(state, module).items()
        )
        yield f"| {state.__name__} | {meaning} | {', '.join(moves)} |"
    yield ""


def transitions(state: type, module: ModuleType) -> dict[str, type]:
    """The events that may happen in a state, and the states that they lead to."""
    methods = {n: m for n, m in getmembers(state, isfunction) if n[0] != "_"}
    hints = {n: get_type_hints(m, vars(module)) for n, m in methods.items()}
    return {name: hint["return"] for name, hint in hints.items()}


def dialects() -> Iterator[str]:
    """Describe each dialect from its class."""
    yield "| dialect | clients | payloads | header of the lease | paths |"
    yield "|---|---|---|---|---|"
    names = dialect.installed()
    for name in sorted(names, key=lambda name: (name != dialect.OWN, name)):
        kind = dialect.load(name)
        tops = {
            f"/{route.path.split('/')[1]}"
            for route in kind.routes()
            if isinstance(route, Route)
            and not (kind.prefix and route.path.startswith(kind.prefix))
        }
        paths = [f"{kind.prefix}/..."] if kind.prefix else []
        shown = ", ".join(f"`{path}`" for path in [*paths, *sorted(tops)])
        payloads = ", ".join(f"`{payload}`" for payload in kind.payloads)
        yield (
            f"| `{name}` | {kind.clients} | {payloads} | `{kind.lease_header}` | {shown} |"
        )


def http_paths(document: Schema) -> Iterator[str]:
    """Describe every path: what it does, what it takes, what it answers."""
    operations = [
        (method, path, _mapping(_mapping(below)[method]))
        for path, below in _mapping(document["paths"]).items()
        for method in METHODS
        if method in _mapping(below)
    ]
    answers = Counter(
        (status, _text(_mapping(answer).get("description")))
        for *_, operation in operations
        for status, answer in _mapping(operation["responses"]).items()
    )
    common = {
        answer
        for answer, times in answers.items()
        if answer[0] >= "400" and times > len(operations) / 2
    }
    yield from ("## Statuses of most paths", "")
    yield from (f"- **{status}** {text}" for status, text in sorted(common))
    yield ""
    for start, title in DIALECTS.items():
        yield from (f"## {title}", "")
        for method, path, operation in operations:
            if _dialect(path) == start:
                yield from http_operation(method, path, operation, common)
    yield from ("## Objects", "")
    schemas = _mapping(_mapping(document["components"])["schemas"])
    for name, schema in sorted(schemas.items(), key=lambda one: _object(one[0])):
        described = _mapping(schema)
        yield from (
            f"### `{_object(name)}`",
            "",
            _text(described.get("description")),
            "",
        )
        if "properties" in described:
            yield from key_rows(described, document)
        elif "enum" in described:
            yield from (values(described, document), "")


def http_operation(
    method: str, path: str, operation: Schema, common: set[tuple[str, str]]
) -> Iterator[str]:
    """Describe one method of one path, but not the answers that most paths give."""
    yield from (f"### `{method.upper()} {path}`", "")
    yield from (_text(operation.get("description") or operation.get("summary")), "")
    for parameter in map(_mapping, _listing(operation.get("parameters"))):
        where = f"{parameter['in']} parameter"
        schema = _mapping(parameter.get("schema", {}))
        kind = http_values(schema)
        text = _text(parameter.get("description") or schema.get("description"))
        yield f"- `{parameter['name']}` ({where}, {kind}){': ' + text if text else ''}"
    body = _mapping(operation.get("requestBody", {}))
    for type_, content in _mapping(body.get("content", {})).items():
        yield f"- body: {type_}, {http_values(_mapping(_mapping(content).get('schema', {})))}"
    yield ""
    for status, answer in sorted(_mapping(operation.get("responses", {})).items()):
        described = _mapping(answer)
        if (status, described.get("description")) in common:
            continue
        kinds = [
            http_values(_mapping(_mapping(content).get("schema", {})))
            for content in _mapping(described.get("content", {})).values()
        ]
        shown = f": {', '.join(kinds)}" if kinds and kinds != ["any"] else ""
        text = _text(described.get("description")).removesuffix(".")
        yield f"- **{status}** {text.replace('Successful Response', 'Success')}{shown}"
    yield ""


def key_rows(schema: Schema, document: Schema) -> Iterator[str]:
    """Describe the fields of an object of the HTTP dialects."""
    yield from ("| field | values | meaning |", "|---|---|---|")
    for name, field in _mapping(schema["properties"]).items():
        content = _mapping(field)
        cells = (f"`{name}`", http_values(content), _text(content.get("description")))
        yield f"| {' | '.join(cell.replace('|', '&#124;') for cell in cells)} |"
    yield ""


def http_values(schema: Schema) -> str:
    """What a field may be, in a few words; other objects by their names."""
    if "$ref" in schema:
        return f"`{_object(str(schema['$ref']))}`"
    for name in ("oneOf", "anyOf"):
        if name in schema:
            found = [http_values(_mapping(one)) for one in _listing(schema[name])]
            return " or ".join(dict.fromkeys(found))
    if schema.get("type") == "array":
        return f"list of {http_values(_mapping(schema.get('items', {})))}"
    return values(schema, {})


def read_schema(path: str) -> Schema:
    """Read one of our JSON schemas."""
    return _mapping(json.loads(files("sf_quantum").joinpath(path).read_text("utf-8")))


def _object(name: str) -> str:
    """An object's own name; FastAPI puts the module before those that occur twice."""
    *modules, own = name.rpartition("/")[2].split("__")
    return f"{own} ({modules[-2]})" if len(modules) > 1 else own


def _dialect(path: str) -> str:
    return next((start for start in DIALECTS if path.startswith(start)), "/")


def _bounds(key: Mapping[str, JSON]) -> str:
    least, most = key.get("minimum"), key.get("maximum")
    if least is not None and most is not None:
        return f", {least} to {most}"
    if least is not None:
        return f", {least} or more"
    if "exclusiveMinimum" in key:
        return f", more than {key['exclusiveMinimum']}"
    return ""


def _literal(value: JSON) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _sentence(text: str) -> str:
    text = " ".join(text.split())
    return f"{text[0].upper()}{text[1:]}{'' if text.endswith('.') else '.'}"


def _text(value: JSON) -> str:
    return " ".join(value.split()) if isinstance(value, str) else ""


def _mapping(value: JSON) -> Schema:
    return value if isinstance(value, dict) else {}


def _listing(value: JSON) -> list[JSON]:
    return value if isinstance(value, list) else []


if __name__ == "__main__":
    write_pages()
    write_workload_schema()
