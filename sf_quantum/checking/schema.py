"""Checks for unknown keys and wrong values, with the schemas of StreamFlow and its plugins.

StreamFlow validates against the same schemas, but prints a dump of the schemas, and misses
errors with which a run fails later: misspelt keys of services, deployments and failure
managers. This module descends the file and the schemas together. Keys that no schema names
are unknown, even if the schema permits additional keys; jsonschema validates single values.
"""

from __future__ import annotations

import functools
import logging
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from itertools import starmap
from typing import TypeAlias
from urllib.parse import urldefrag, urljoin

from jsonschema.exceptions import ValidationError, best_match
from jsonschema.protocols import Validator
from jsonschema.validators import validator_for
from streamflow.config.schema import SfSchema
from streamflow.ext.utils import load_extensions
from streamflow.log_handler import logger

from sf_quantum.checking.document import Document, FileProblem, suggestion
from sf_quantum.errors import InputError
from sf_quantum.files import JSON, KeyPath, listing, mapping

Schema: TypeAlias = dict[str, JSON]

VERSION = "v1.0"
UNKNOWN = "unknown key"
# Keywords that this module handles. All others concern single values, and are left to
# jsonschema.
WALKED = frozenset(
    "$ref $defs $id $schema allOf oneOf anyOf if then else properties patternProperties "
    "required additionalProperties unevaluatedProperties items dependentSchemas".split()
)
# words for the types of JSON Schema in messages
NAMES = {
    "string": "text",
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
    "object": "a mapping of keys",
    "array": "a list",
    "null": "nothing",
}
# By keyword of JSON Schema: the remedy for a value that violates it.
BOUNDS = {
    "minimum": "write {} or more",
    "exclusiveMinimum": "write more than {}",
    "maximum": "write {} or less",
    "exclusiveMaximum": "write less than {}",
    "minItems": "list at least {}",
    "maxItems": "list at most {}",
    "uniqueItems": "list each once",
    "pattern": "write what matches {}",
}


@dataclass(frozen=True)
class Part:
    """A schema that applies to a value, and the base URI of its references.

    :param lax: whether only keys are checked, and not values, as StreamFlow ignores these
    """

    schema: Schema
    base: str
    lax: bool = False

    def sub(self, schema: JSON) -> Part:
        """Return a schema inside this schema; empty for ``true`` and ``false``."""
        return replace(self, schema=mapping(schema))

    def branches(self, keyword: str) -> list[Part]:
        """Return the schemas of ``allOf``, ``oneOf`` or ``anyOf``."""
        branches = self.schema.get(keyword)
        return list(map(self.sub, branches)) if isinstance(branches, list) else []

    @property
    def properties(self) -> Schema:
        return mapping(self.schema.get("properties"))

    @property
    def required(self) -> list[str]:
        return [str(key) for key in listing(self.schema.get("required"))]

    @property
    def kinds(self) -> dict[str, str]:
        """The keys with a single permitted value, such as ``type``, each with this value."""
        return {
            key: str(mapping(sub)["const"])
            for key, sub in self.properties.items()
            if "const" in mapping(sub)
        }

    def named(self) -> set[str]:
        """Return the keys that the schema names, even under conditions that are not met."""
        keys = {*self.properties, *self.required}
        for part in [self, *self.branches("allOf")]:
            for branch in part.schema.keys() & {"then", "else"}:
                keys |= part.sub(part.schema[branch]).named()
        return keys


@functools.cache
def rules() -> Rules:
    """Return the rules; cached, since StreamFlow registers plugins again at each load."""
    return Rules()


class Rules:
    """The schemas of StreamFlow and its installed plugins for StreamFlow files.

    :raises InputError: if a plugin cannot be loaded; StreamFlow would then not start either
    """

    def __init__(self) -> None:
        level = logger.level
        logger.setLevel(logging.ERROR)
        try:
            load_extensions()
        except (ImportError, AttributeError) as error:
            raise InputError(
                f"a StreamFlow plugin cannot be loaded: {error}; install or remove it"
            ) from error
        finally:
            logger.setLevel(level)
        self.schema = SfSchema()
        self.root: Schema = self.schema.get_config(VERSION).contents
        validator = validator_for(self.root)
        self._whole_validator = validator(self.root, registry=self.schema.registry)
        self._empty_validator = validator({}, registry=self.schema.registry)

    def check(self, document: Document) -> Iterator[FileProblem]:
        """Find all unknown keys, missing keys and wrong values."""
        version = document.content.get("version", VERSION)
        if version not in self.schema.configs:
            right = f"write version: {VERSION}"
            yield document.problem(("version",), f"unknown version {version!r}", right)
            document = replace(
                document, content={**document.content, "version": VERSION}
            )
        faults = list(self._walk(document.content, [self.top()], (), {}))
        yield from starmap(document.problem, faults)
        # If only StreamFlow's own validation finds an error, its message is reported.
        errors = self._whole_validator.iter_errors(document.content)
        if not faults and (error := best_match(errors)):
            yield document.problem(
                tuple(error.absolute_path),
                f"StreamFlow rejects it: {error.message[:160]}",
                "see its documentation",
            )

    def top(self) -> Part:
        """Return the schema of the whole file."""
        return Part(self.root, self.schema.configs[VERSION])

    def validator(self, schema: Schema) -> Validator:
        """Return the jsonschema validator of a schema without references to its own parts."""
        return self._empty_validator.evolve(schema=schema)

    def is_type(self, value: JSON, types: JSON) -> bool:
        """Return whether a value has one of the types; true if no types are given."""
        names = [types] if isinstance(types, str) else types
        if not isinstance(names, list):
            return True
        return any(self._empty_validator.is_type(value, str(name)) for name in names)

    def parts(self, part: Part, value: JSON) -> Iterator[Part]:
        """Yield a schema, and the schemas that it includes for a value.

        These are its references, the branches of its conditions, and its best alternatives.
        """
        yield part
        for inner in self._included_parts(part, value):
            yield from self.parts(inner, value)

    def config(self, deployment: dict[str, JSON]) -> set[str]:
        """Return the keys that the schemas name in the ``config`` of a deployment."""
        entity: JSON = {"type": deployment.get("type"), "config": {}}
        definition = self.top().sub(mapping(self.root["$defs"])["deployment"])
        for part in self.parts(definition, entity):
            if "config" in part.properties:
                parts = self.parts(part.sub(part.properties["config"]), {})
                return {key for inner in parts for key in inner.properties}
        return set()

    def _included_parts(self, part: Part, value: JSON) -> Iterator[Part]:
        """Yield the schemas that a schema itself includes for a value; see :meth:`parts`."""
        schema = part.schema
        if isinstance(reference := schema.get("$ref"), str):
            yield self._resolve(part, reference)
        yield from part.branches("allOf")
        if "if" in schema and not _tests_missing_type(part.sub(schema["if"]), value):
            errors = self.validator(mapping(schema["if"])).iter_errors(value)
            branch = "else" if any(True for _ in errors) else "then"
            yield part.sub(schema.get(branch))
        for keyword in ("oneOf", "anyOf"):
            if keyword in schema and (best := self._best(part, keyword, value)):
                yield best

    def _resolve(self, part: Part, reference: str) -> Part:
        resolver = self.schema.registry.resolver(base_uri=part.base)
        contents: Schema = resolver.lookup(reference).contents
        # urljoin cannot join a fragment to a URN, which a plugin's $id may be.
        inside = reference.startswith("#")
        base = part.base if inside else urldefrag(urljoin(part.base, reference)).url
        return replace(part, schema=contents, base=base)

    def _best(self, part: Part, keyword: str, value: JSON) -> Part | None:
        """Return the best alternative: right type, then closest kind, then most common keys.

        The *kind* of a mapping is the value of a key with one permitted value, such as
        ``type``.
        """
        branches = part.branches(keyword)
        fitting = [p for p in branches if self.is_type(value, p.schema.get("type"))]
        if not fitting or _bare_kind(value, branches):
            return None
        keys = mapping(value).keys()

        def likeness(part: Part) -> tuple[float, int]:
            named = {key for inner in self.parts(part, value) for key in inner.named()}
            return _likeness(part, value), len(keys & named)

        best = max(fitting, key=likeness)
        # The returned part permits the kinds of all alternatives, so that an error message can
        # suggest any of them.
        kinds: Schema = {
            key: {"enum": [p.kinds[key] for p in fitting if key in p.kinds]}
            for key in best.kinds
        }
        return best.sub({**best.schema, "properties": {**best.properties, **kinds}})

    def _walk(
        self,
        value: JSON,
        parts: list[Part],
        where: KeyPath,
        above: Mapping[str, str],
    ) -> Iterator[tuple[KeyPath, str, str]]:
        """Descend the file and the schemas together; yield key path, fault and remedy.

        :param above: for each valid key of the mappings around the value, the key under which
            that mapping contains the value
        """
        parts = [inner for part in parts for inner in self.parts(part, value)]
        for what, right in sorted(self._faults(value, parts, where)):
            yield where, what, right
        if isinstance(value, dict):
            yield from self._walk_keys(value, parts, where, above)
        elif isinstance(value, list):
            items = [p.sub(p.schema["items"]) for p in parts if "items" in p.schema]
            for index, item in enumerate(value):
                yield from self._walk(item, items, (*where, index), above)

    def _faults(
        self, value: JSON, parts: list[Part], where: KeyPath
    ) -> set[tuple[str, str]]:
        """Return the faults of the value itself, not of the values inside it."""
        if isinstance(value, float) and not math.isfinite(value):
            return {(f"{value} is not allowed", "write a finite number")}
        faults = set()
        for part in [part for part in parts if not part.lax]:
            alone = {k: v for k, v in part.schema.items() if k not in WALKED}
            for error in self.validator(alone).iter_errors(value):
                faults.add(_describe_error(value, error, where))
            for keyword in ("oneOf", "anyOf"):
                types = [branch.schema.get("type") for branch in part.branches(keyword)]
                if types and not any(self.is_type(value, t) for t in types):
                    faults.add(_not_of_type(value, types))
            branches = part.branches("oneOf")
            faults.update(_exclusive_keys(value, branches), _bare_kind(value, branches))
        return faults

    def _walk_keys(
        self,
        value: dict[str, JSON],
        parts: list[Part],
        where: KeyPath,
        above: Mapping[str, str],
    ) -> Iterator[tuple[KeyPath, str, str]]:
        """Check the keys of a mapping, and descend into its values; see :meth:`_walk`."""
        keys = {key for part in parts for key in part.named()}
        below = {key: _children(key, parts, keys) for key in value}
        for key, children in below.items():
            if isinstance(children, tuple) and children[0] == UNKNOWN:
                if holder := self._holder(key, value, parts):
                    below[key] = UNKNOWN, f"write it inside {holder}"
                elif key in above:
                    below[key] = UNKNOWN, f"write it beside {above[key]}"
        suggested = {what[1] for what in below.values() if isinstance(what, tuple)}
        for key in sorted({key for p in parts for key in p.required} - value.keys()):
            if not {f"did you mean {key}?", f"write it inside {key}"} & suggested:
                yield where, f"{key} is missing", f"add {key}:"
        for key, item in value.items():
            children = below[key]
            if isinstance(children, tuple):
                yield (*where, key), *children
            else:
                around = {**above, **dict.fromkeys(keys, key)}
                yield from self._walk(item, children, (*where, key), around)

    def _holder(
        self, key: str, value: dict[str, JSON], parts: list[Part]
    ) -> str | None:
        """Return the key of this mapping under which a misplaced key would be valid."""
        for part in parts:
            for name, schema in part.properties.items():
                given = value.get(name, {})
                inner = self.parts(part.sub(schema), mapping(given))
                if any(key in inner_part.properties for inner_part in inner):
                    return name
        return None


def _children(
    key: str, parts: list[Part], keys: set[str]
) -> list[Part] | tuple[str, str]:
    """Return the schemas of the value under a key, or the fault of the key and a remedy."""
    children = [p.sub(p.properties[key]) for p in parts if key in p.properties]
    if children or key in keys:
        return children
    patterns = [
        (pattern, part.sub(schema))
        for part in parts
        for pattern, schema in mapping(part.schema.get("patternProperties")).items()
    ]
    fitting = [part for pattern, part in patterns if re.search(pattern, key)]
    word = "additionalProperties"
    rest = [part.schema[word] for part in parts if word in part.schema]
    if fitting or (patterns and not rest and not keys):
        # If an entry's name matches no pattern, such as a service named GPU, StreamFlow does
        # not check the entry, but later fails on its unknown keys. So only keys are checked.
        return fitting or [replace(part, lax=True) for _, part in patterns]
    if rest and False not in rest:
        return [part.sub(schema) for part in parts for schema in rest]
    if patterns and not keys:
        right = f"a name must match {patterns[0][0]}"
        return "StreamFlow does not accept this name", right
    return (UNKNOWN, suggestion(key, keys)) if keys or rest else []


def _tests_missing_type(condition: Part, value: JSON) -> bool:
    """Return whether a condition on ``type`` is met only because the type is missing.

    Such conditions are left out, as the schemas of all connectors would apply. The missing key
    is reported in any case.
    """
    return "type" in condition.properties and "type" not in mapping(value)


def _describe_error(
    value: JSON, error: ValidationError, where: KeyPath
) -> tuple[str, str]:
    """Return the fault that an error of jsonschema reports, and a remedy."""
    wanted = error.validator_value
    if error.validator == "type":
        return _not_of_type(value, wanted if isinstance(wanted, list) else [wanted])
    if error.validator in ("enum", "const"):
        names = [str(n) for n in (wanted if isinstance(wanted, list) else [wanted])]
        kind = where[-1] if where else "value"
        return f"unknown {kind} {_shown(value)}", suggestion(str(value), names)
    examples = listing(mapping(error.schema).get("examples"))
    if error.validator == "pattern" and examples:
        right = f"write a value such as {' or '.join(map(str, examples))}"
        return f"{_shown(value)} is not allowed", right
    right = BOUNDS.get(error.validator, f"{error.validator} must be {{}}")
    return f"{_shown(value)} is not allowed", right.format(wanted)


def _not_of_type(value: JSON, types: list[JSON]) -> tuple[str, str]:
    """Return the fault that a value has none of the types, and a remedy."""
    names = [NAMES.get(str(name), str(name)) for name in types if name != "null"]
    right = f"write {' or '.join(dict.fromkeys(names))}"
    if value is None:
        return "the value is empty", (
            f"{right}, {{}} for none" if "object" in types else right
        )
    if names == [NAMES["string"]] and type(value) is int:
        right = f'{right}: "{value}"'
    return f"{_shown(value)} has the wrong type", right


def _shown(value: JSON) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


def _likeness(part: Part, value: JSON) -> float:
    """Return the similarity of a value's kind to an alternative's kind, 0 to 1."""
    pairs = [(str(mapping(value).get(key)), kind) for key, kind in part.kinds.items()]
    return max((SequenceMatcher(None, *pair).ratio() for pair in pairs), default=0.0)


def _bare_kind(value: JSON, branches: list[Part]) -> list[tuple[str, str]]:
    """Find a value that is only an alternative's kind, but the alternative needs more keys."""
    for branch in branches:
        for key, kind in branch.kinds.items():
            more = [name for name in branch.required if name != key]
            if value == kind and more:
                keys = ", ".join([f"{key}: {kind}", *(f"{name}: ..." for name in more)])
                return [(f"{kind} needs {' and '.join(more)}", f"write {{{keys}}}")]
    return []


def _exclusive_keys(value: JSON, branches: list[Part]) -> list[tuple[str, str]]:
    """Find keys that exclude each other: ``oneOf`` whose schemas have only ``required``."""
    alone = [
        branch.required for branch in branches if set(branch.schema) == {"required"}
    ]
    given = [key for keys in alone for key in keys if key in mapping(value)]
    return [(f"{' and '.join(given)} are both given", "keep one")] if given[1:] else []
