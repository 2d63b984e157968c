"""CWL documents, right and wrong, and what StreamFlow says of them before it runs them."""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import random
import shutil
from collections.abc import Iterator
from copy import deepcopy
from functools import cache
from pathlib import Path

import pytest
from streamflow.config.config import WorkflowConfig
from streamflow.config.validator import SfValidator
from streamflow.cwl.main import main as translate
from streamflow.ext.utils import load_extensions
from streamflow.log_handler import logger
from streamflow.main import build_context

from sf_quantum.checking import FileProblem, check_file
from sf_quantum.cli import parser_for
from sf_quantum.files import JSON, mapping

FEATURES = (
    "InlineJavascriptRequirement",
    "MultipleInputFeatureRequirement",
    "ScatterFeatureRequirement",
    "StepInputExpressionRequirement",
)
#: for tests whose expressions are more than references, which cwl-utils runs with Node.js
needs_javascript = pytest.mark.skipif(
    not (shutil.which("node") or shutil.which("nodejs")),
    reason="needs Node.js (apt-get install nodejs)",
)
KINDS = ("int", "string", "File", "boolean")
# a value of another type, or none
STRANGE: tuple[JSON, ...] = (None, 1, "x", [], {}, [None], {"x": 1}, True, "$(", "${")


def streamflow_file(file: Path, settings: Path | None) -> dict[str, JSON]:
    """A StreamFlow file that runs a CWL file on this host."""
    config: dict[str, JSON] = {"file": str(file)}
    if settings is not None:
        config["settings"] = str(settings)
    return {
        "version": "v1.0",
        "workflows": {"main": {"type": "cwl", "config": config}},
        "database": {"type": "default", "config": {"connection": ":memory:"}},
    }


def checked(path: Path) -> list[FileProblem]:
    """The problems that ``sfq check`` finds in a StreamFlow file."""
    return check_file(path, parser_for).problems


def rejected(path: Path) -> str:
    """Why StreamFlow does not translate a StreamFlow file; empty if it does."""
    return _failure(path, validate=True)


def failed(path: Path) -> str:
    """Why StreamFlow fails to run a StreamFlow file on this host; empty if it does not."""
    return _failure(path, validate=False)


def _failure(path: Path, *, validate: bool) -> str:
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        _extend()
        asyncio.run(_translate(path, validate=validate))
    except Exception as error:  # noqa: BLE001 - whatever StreamFlow raises
        return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
    finally:
        logger.setLevel(level)
    return ""


@cache
def _extend() -> None:
    load_extensions()


async def _translate(path: Path, *, validate: bool) -> None:
    config = SfValidator().validate_file(str(path))
    config["path"] = str(path)
    context = build_context(config)
    args = argparse.Namespace(name="main", outdir=str(path.parent), validate=validate)
    try:
        for name in config["workflows"]:
            await translate(WorkflowConfig(name, config), context, args)
    finally:
        await context.close()


def workflow(rng: random.Random) -> dict[str, JSON]:
    """A random valid workflow, with its tools inside.

    Steps take inputs of the workflow or outputs of earlier steps, alone, merged, picked,
    scattered, conditional, with defaults and expressions.
    """
    inputs: dict[str, JSON] = {
        f"{kind.lower()}s": {"type": f"{kind}[]"} for kind in KINDS
    }
    inputs.update({kind.lower(): kind for kind in KINDS})
    sources = {kind: [kind.lower()] for kind in KINDS}
    lists = {kind: [f"{kind.lower()}s"] for kind in KINDS}
    steps: dict[str, JSON] = {}
    outputs: dict[str, JSON] = {}
    for number in range(rng.randint(1, 6)):
        name, kind, made = f"s{number}", rng.choice(KINDS), rng.choice(KINDS)
        step, is_list, is_optional = _step(rng, kind, made, sources, lists)
        steps[name] = step
        source, type_ = f"{name}/out", f"{made}[]" if is_list else made
        if not is_optional:
            (lists if is_list else sources)[made].append(source)
        outputs[f"o{number}"] = {
            "type": ["null", type_] if is_optional else type_,
            "outputSource": source,
        }
    return {
        "cwlVersion": "v1.2",
        "class": "Workflow",
        "requirements": {name: {} for name in FEATURES},
        "inputs": inputs,
        "outputs": outputs,
        "steps": steps,
    }


def _step(
    rng: random.Random,
    kind: str,
    made: str,
    sources: dict[str, list[str]],
    lists: dict[str, list[str]],
) -> tuple[JSON, bool, bool]:
    """A step that takes one kind and makes another, and whether many, and maybe none."""
    run: dict[str, JSON] = {
        "class": "CommandLineTool",
        "baseCommand": "true",
        "inputs": {"x": kind, "y": f"{kind}[]?", "z": {"type": "string?"}},
        "outputs": {"out": {"type": made}},
    }
    if made == "File":
        run["outputs"] = {"out": {"type": made, "outputBinding": {"glob": "made"}}}
    entries: dict[str, JSON] = {}
    step: dict[str, JSON] = {"run": run, "in": entries, "out": ["out"]}
    is_list = is_optional = False
    match rng.randrange(5):
        case 0:
            entries["x"] = rng.choice(lists[kind])
            step["scatter"], is_list = "x", True
        case 1:
            several: list[JSON] = [*_sampled(rng, sources[kind])]
            entries["x"] = {"source": several, "pickValue": "first_non_null"}
        case 2:
            entries["x"] = {"source": rng.choice(sources[kind]), "valueFrom": "$(self)"}
        case 3:
            entries["x"] = rng.choice(sources[kind])
            step["when"], is_optional = "$(inputs.x == 1)", True
        case _:
            entries["x"] = {"source": rng.choice(sources[kind])}
    if rng.random() < 0.4:
        merge = rng.choice(["merge_nested", "merge_flattened"])
        if merge == "merge_nested":
            ones: list[JSON] = [*_sampled(rng, sources[kind])]
        else:
            ones = [rng.choice(lists[kind]), rng.choice(sources[kind])]
        entries["y"] = {"source": ones, "linkMerge": merge}
    if rng.random() < 0.4:
        default: dict[str, JSON] = {"default": "$(not) {an} 'expression"}
        if rng.random() < 0.5:
            default["valueFrom"] = "a $(inputs.z) b"
        entries["z"] = default
    return step, is_list, is_optional


def _sampled(rng: random.Random, sources: list[str]) -> list[str]:
    """Up to two different sources, since StreamFlow takes each once."""
    return rng.sample(sources, min(2, len(sources)))


#: files that types of :func:`nested_type` import
IMPORTED: dict[str, JSON] = {
    "field.json": {"name": "m", "type": "int"},
    "fields.json": [{"name": "m", "type": "int"}, {"name": "n", "type": "string?"}],
    "map.json": {"m": "int", "n": {"type": "string?"}},
    "type.json": {"type": "enum", "symbols": ["m", "n"]},
    "symbols.json": ["m", "n"],
    "binding.json": {"prefix": "-x"},
}


def nested_type(rng: random.Random, depth: int = 3) -> JSON:
    """A random valid type, parts of which may be in files of :data:`IMPORTED`."""
    bound: dict[str, JSON] = {}
    if rng.random() < 0.3:
        bindings: list[JSON] = [{"position": 1}, {"$import": "binding.json"}]
        bound["inputBinding"] = rng.choice(bindings)
    match rng.randrange(6 if depth else 3):
        case 0:
            return rng.choice(KINDS)
        case 1:
            return {"$import": "type.json"}
        case 2:
            symbols: list[JSON] = [["a", "b"], {"$import": "symbols.json"}]
            return {"type": "enum", "symbols": rng.choice(symbols), **bound}
        case 3:
            items = [nested_type(rng, depth - 1) for _ in range(rng.randint(1, 2))]
            listed: JSON = items if len(items) > 1 else items[0]
            return {"type": "array", "items": listed, **bound}
        case _:
            return {"type": "record", "fields": _record_fields(rng, depth), **bound}


def _record_fields(rng: random.Random, depth: int) -> JSON:
    if rng.random() < 0.2:
        return {"$import": rng.choice(["fields.json", "map.json"])}
    fields: dict[str, JSON] = {
        name: {"type": nested_type(rng, depth - 1)}
        for name in "abc"[: rng.randint(1, 3)]
    }
    imported: dict[str, JSON] = {"$import": "field.json"}
    if rng.random() < 0.5:
        return {**fields, **({"m": imported} if rng.random() < 0.5 else {})}
    listed: list[JSON] = [{"name": k, **mapping(v)} for k, v in fields.items()]
    return [*listed, imported] if rng.random() < 0.5 else listed


def mutated(content: JSON, rng: random.Random) -> JSON:
    """A document with one mistake, or what may be one."""
    content = deepcopy(content)
    holder, key = rng.choice([*_places(content)])
    if isinstance(holder, dict):
        assert isinstance(key, str)
        match rng.randrange(4):
            case 0:
                del holder[key]
            case 1:
                holder[_misspelt(key, rng)] = holder.pop(key)
            case 2 if isinstance(holder[key], str):
                holder[key] = _misspelt(str(holder[key]), rng)
            case _:
                holder[key] = deepcopy(rng.choice(STRANGE))
    else:
        assert isinstance(key, int)
        holder[key] = deepcopy(rng.choice(STRANGE))
    return content


def _places(
    content: JSON,
) -> Iterator[tuple[dict[str, JSON] | list[JSON], str | int]]:
    for key, value in mapping(content).items():
        assert isinstance(content, dict)
        yield content, key
        yield from _places(value)
    for index, value in enumerate(content if isinstance(content, list) else []):
        assert isinstance(content, list)
        yield content, index
        yield from _places(value)


def _misspelt(word: str, rng: random.Random) -> str:
    at = rng.randrange(len(word) + 1)
    return word[:at] + rng.choice("xq_1") + word[at + 1 :]


def values(content: JSON, folder: Path) -> Path:
    """Write values for the inputs of a workflow of :func:`workflow`."""
    (folder / "data").write_text("")
    file: JSON = {"class": "File", "path": "data"}
    one: dict[str, JSON] = {"int": 1, "string": "a", "file": file, "boolean": True}
    given = {**one, **{f"{name}s": [value, value] for name, value in one.items()}}
    names = mapping(mapping(content).get("inputs"))
    path = folder / "job.json"
    path.write_text(json.dumps({k: v for k, v in given.items() if k in names}))
    return path


#: problems that concern this host or values, which StreamFlow meets only when it runs
ELSEWHERE = (
    "is not on the PATH",
    "settings is missing",
    "has no value, and",
    "is missing",
    "no such file",
)


def is_of_run(problem: FileProblem) -> bool:
    """Whether a problem is one of values or of this host."""
    return any(words in problem.what for words in ELSEWHERE)
