"""Every key has a description, and editors and programs can use the schemas."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from jsonschema import Draft202012Validator

from docs.generate import (
    STREAMFLOW_TYPES,
    Schema,
    commands,
    key_table,
    pages,
    read_schema,
    service_keys,
)
from sf_quantum.files import JSON
from tests.support.folders import ROOT

DEPLOYMENTS = [
    path
    for path in sorted(
        [*ROOT.glob("deployments/*.yml"), *ROOT.glob("examples/*/*.yml")]
    )
    if "workflows:" in path.read_text(encoding="utf-8")
]


def undescribed(schema: JSON, root: Schema, where: str = "") -> Iterator[str]:
    """The properties below a part of a schema that nothing is said of."""
    if isinstance(schema, list):
        for part in schema:
            yield from undescribed(part, root, where)
    if not isinstance(schema, dict):
        return
    properties = schema.get("properties")
    if isinstance(properties, dict):
        for name, key in properties.items():
            assert isinstance(key, dict)
            reference = str(key.get("$ref", "")).removeprefix("#/$defs/")
            definitions = root.get("$defs", {})
            assert isinstance(definitions, dict)
            referred = definitions.get(reference)
            found = key if "description" in key else referred
            if not isinstance(found, dict) or not found.get("description"):
                yield f"{where}.{name}"
    for name, part in schema.items():
        yield from undescribed(part, root, f"{where}.{name}")


@pytest.mark.process
def test_generated_pages_say_what_the_code_does() -> None:
    late = [path.name for path, text in pages() if path.read_text("utf-8") != text]
    assert not late, "python -m docs.generate writes them"


@pytest.mark.parametrize("name", STREAMFLOW_TYPES)
def test_every_key_is_described(name: str) -> None:
    schema = read_schema(STREAMFLOW_TYPES[name])
    assert schema["title"] == name
    assert schema["description"]
    assert not [*undescribed(schema, schema)]
    assert f"| {'key'} |" in "\n".join(key_table(schema, schema))


def test_every_key_of_the_service_is_described() -> None:
    rows = [line.split(" | ") for line in service_keys() if line.startswith("| `")]
    maps = re.compile(r"\.<.*>$")  # entries under names of the user's own
    assert len(rows) > 50
    assert not [row[0] for row in rows if row[3] == " |" and not maps.search(row[0])]


def test_the_list_of_types_is_the_plugins() -> None:
    source = (ROOT / "sf_quantum/plugin.py").read_text(encoding="utf-8")
    assert {f'"{name}"' for name in STREAMFLOW_TYPES} == {
        word
        for word in source.replace("(", " ").replace(",", " ").split()
        if word.startswith('"sfq.')
    }


def test_every_option_is_described() -> None:
    assert "(no description)" not in "\n".join(commands())


@pytest.fixture(scope="module")
def combined() -> Draft202012Validator:
    """What ``streamflow schema`` prints, as an editor reads it."""
    command = [str(Path(sys.executable).with_name("streamflow")), "schema", "v1.0"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return Draft202012Validator(json.loads(done.stdout))


@pytest.mark.process
@pytest.mark.parametrize("path", DEPLOYMENTS, ids=lambda path: path.name)
def test_an_editor_finds_nothing_wrong_with_ours(
    path: Path, combined: Draft202012Validator
) -> None:
    assert not [*combined.iter_errors(yaml.safe_load(path.read_text()))]


@pytest.mark.process
def test_an_editor_finds_a_key_that_is_misspelt(
    combined: Draft202012Validator,
) -> None:
    text = (ROOT / "deployments/emulator.yml").read_text(encoding="utf-8")
    errors = [
        *combined.iter_errors(yaml.safe_load(text.replace("timeScale", "timescale")))
    ]
    assert errors
    assert "timescale" in str(errors[0])
