"""CWL's types: the values that they accept, and which types may be linked."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

from sf_quantum.checking.document import suggestion
from sf_quantum.files import JSON, KeyPath, listing, mapping

#: the values of the primitive types in YAML (CWL v1.2, CommandLineTool, section 5.1.1)
PRIMITIVE: dict[str, tuple[type, ...]] = {
    "boolean": (bool,),
    "int": (int,),
    "long": (int,),
    "float": (int, float),
    "double": (int, float),
    "string": (str,),
}
ANY, NULL = "Any", "null"
# name of a type that SchemaDefRequirement or another file defines
UNKNOWN = "a type that is defined elsewhere"
# short forms of the type File: outputs that are streams, and an input that is standard input
STREAMS = ("stdin", "stdout", "stderr")
FILES = ("File", "Directory")
_FILES_INSIDE: JSON = {"type": "array", "items": ["File", "Directory"]}
#: fields of files and folders, with their types (CWL v1.2, CommandLineTool, section 5.1.2);
#: null is included for fields in which StreamFlow accepts null
_FILE_FIELDS: dict[str, JSON] = {
    **dict.fromkeys(("class", "path"), "string"),
    **dict.fromkeys(("location", "basename", "dirname", "nameroot"), "string?"),
    **dict.fromkeys(("nameext", "checksum", "format", "contents"), "string?"),
    "size": "long?",
    "secondaryFiles": ["null", _FILES_INSIDE],
}
FILE_FIELDS: dict[str, dict[str, JSON]] = {
    "File": _FILE_FIELDS,
    "Directory": {
        **_FILE_FIELDS,
        "secondaryFiles": _FILES_INSIDE,
        "listing": ["null", _FILES_INSIDE],
    },
}
WORDS = (*PRIMITIVE, *FILES, ANY, NULL, "array", "record", "enum")
# key of a mapping whose content is in another file; StreamFlow does not read $mixin
IMPORT = "$import"
# By type: the other types for which a value of the type is also accepted.
WIDER = {
    "int": ("long", "float", "double"),
    "long": ("int", "float", "double"),
    "float": ("double",),
    "double": ("float",),
    "string": ("enum",),
    "enum": ("string",),
}


@dataclass(frozen=True)
class Type:
    """One alternative of a type such as ``[File, "null"]``.

    :param name: one of CWL's types, or ``UNKNOWN``
    :param items: types of an array's items
    :param fields: types of a record's fields, by name
    :param symbols: symbols of an enum
    :param is_elsewhere: whether another file contains some of the fields or symbols
    """

    name: str
    items: Types = ()
    fields: dict[str, Types] = field(default_factory=dict, compare=False)
    symbols: tuple[str, ...] = ()
    is_elsewhere: bool = False

    def __str__(self) -> str:
        if self.name != "array":
            return self.name
        inner = shown(self.items)
        return f"{inner}[]" if len(self.items) == 1 else f"({inner})[]"


#: the alternatives of a type; empty if the type is unknown
Types: TypeAlias = tuple[Type, ...]


@dataclass(frozen=True)
class Fault:
    """An error in a value, with its path."""

    where: KeyPath
    what: str
    right: str


def read(declared: JSON) -> Types:
    """Read a type in any of CWL's forms."""
    return tuple(type_ for item in listing(declared) for type_ in _read(item))


def declared(body: JSON) -> JSON:
    """Return the type that an entry of ``inputs`` or ``outputs`` declares."""
    return body.get("type") if isinstance(body, dict) else body


def shown(types: Types) -> str:
    """Return a type in CWL's short form: ``File[]?``."""
    names = [str(type_) for type_ in types if type_.name != NULL]
    return " or ".join(names) + "?" * (len(names) < len(types))


def array(types: Types) -> Types:
    """Return the type of arrays with items of a type."""
    return (Type("array", types),) if types else ()


def items(types: Types) -> Types:
    """Replace each alternative that is an array with the types of its items."""
    return tuple(
        item
        for type_ in types
        for item in (type_.items if type_.name == "array" else (type_,))
    )


def file_name(value: JSON) -> JSON:
    """Return the file name that StreamFlow 0.2.0rc3 reads in a value; it should be text."""
    return mapping(value).get("location", mapping(value).get("path"))


def is_optional(body: JSON) -> bool:
    """Return whether an input may be left without a value."""
    names = {type_.name for type_ in read(declared(body))}
    return "default" in mapping(body) or bool(names & {NULL, UNKNOWN}) or not names


def is_bare(types: Types) -> bool:
    """Return whether an alternative, or a type inside it, is a record without fields."""
    return any(
        (type_.name == "record" and not (type_.fields or type_.is_elsewhere))
        or is_bare(type_.items)
        or any(map(is_bare, type_.fields.values()))
        for type_ in types
    )


def fits(source: Types, sink: Types) -> bool:
    """Return whether the source's values may match the sink, as CWL engines decide."""
    without_null = [type_ for type_ in source if type_.name != NULL]
    if not sink or not source:
        return True
    if not without_null:
        return any(type_.name in (NULL, UNKNOWN) for type_ in sink)
    return any(_fits(type_, other) for type_ in without_null for other in sink)


def may_fail(source: Types, sink: Types) -> bool:
    """Return whether the source may be or contain null where the sink does not accept null."""
    if not source or not sink:
        return False
    names = {type_.name for type_ in sink}
    if UNKNOWN in names or {UNKNOWN} & {type_.name for type_ in source}:
        return False
    if NULL not in names and NULL in {type_.name for type_ in source}:
        return True
    inner, wanted = items(_arrays(source)), items(_arrays(sink))
    return bool(inner) and may_fail(inner, wanted)


def _arrays(types: Types) -> Types:
    return tuple(type_ for type_ in types if type_.name == "array")


def fault(value: JSON, types: Types, where: KeyPath = ()) -> Fault | None:
    """Return why a value does not match a type; ``None`` if it matches."""
    names = {type_.name for type_ in types}
    if not types or UNKNOWN in names:
        return None
    if value is None:
        what = "the value is empty"
        right = f"its type is {shown(types)}"
        return None if NULL in names else Fault(where, what, right)
    if ANY in names:
        return None
    faults = [_fault(value, type_, where) for type_ in types if type_.name != NULL]
    if not faults or None in faults:
        return None
    wrong = [wrong_value for wrong_value in faults if wrong_value is not None]
    # The innermost fault comes from the alternative that is most similar to the value.
    best = max(wrong, key=lambda candidate: len(candidate.where))
    if len(wrong) == 1 or len(best.where) > len(where):
        return best
    return Fault(where, f"{_short(value)} does not fit", f"its type is {shown(types)}")


def unknown(
    declared: JSON, where: KeyPath, *, is_short: bool = True
) -> Iterator[Fault]:
    """Yield the names in a type that are neither CWL's types nor in the form of references.

    :param is_short: whether ``?`` and ``[]`` may follow a name, as in ``type``, but not in
        ``items``
    """
    if isinstance(declared, str):
        yield from _unknown_name(declared, where, is_short=is_short)
    elif isinstance(declared, list):
        if not declared:
            yield Fault(where, "unknown type '[]'", suggestion("[]", WORDS))
        for index, item in enumerate(declared):
            yield from unknown(item, (*where, index), is_short=is_short)
    elif isinstance(declared, dict) and IMPORT not in declared:
        yield from unknown(declared.get("type"), (*where, "type"))
        items_ = declared.get("items")
        yield from unknown(items_, (*where, "items"), is_short=False)
        for _, body, below in _fields(declared, where):
            place: KeyPath = (*below, "type") if isinstance(body, dict) else below
            yield from unknown(
                body.get("type") if isinstance(body, dict) else body, place
            )


def _unknown_name(declared: str, where: KeyPath, *, is_short: bool) -> Iterator[Fault]:
    name = declared
    while name.endswith(("?", "[]")):
        name = name.removesuffix("?").removesuffix("[]")
    if name not in (*WORDS, *STREAMS) and not any(c in name for c in "#:/."):
        yield Fault(where, f"unknown type {name!r}", suggestion(name, WORDS))
    elif name != declared and not is_short:
        what = f"items has no short form such as {declared!r}"
        right = ", ".join(_long_form(declared))
        if declared.endswith("?") and not isinstance(where[-1], int):
            right = f"[{right}]"
        yield Fault(where, what, f"write {right}")


def _long_form(name: str) -> list[str]:
    """Return the alternatives, in YAML, that a short form such as ``string[]?`` stands for."""
    if name.endswith("?"):
        inner = _long_form(name.rstrip("?"))
        return [f'"{NULL}"', *(one for one in inner if one != f'"{NULL}"')]
    if name.endswith("[]"):
        inner = _long_form(name[:-2])
        items = inner[0] if len(inner) == 1 else f"[{', '.join(inner)}]"
        return [f"{{type: array, items: {items}}}"]
    return [f'"{NULL}"' if name == NULL else name]


def malformed(declared: JSON, where: KeyPath) -> Iterator[Fault]:
    """Yield wrong and missing keys of the mappings in a type that a parser rejects."""
    for index, item in enumerate(declared if isinstance(declared, list) else []):
        yield from malformed(item, (*where, index))
    if not isinstance(declared, dict) or IMPORT in declared:
        return
    kind = declared.get("type")
    keys = _KEYS.get(kind if isinstance(kind, str) else "")
    if keys is None:
        yield from malformed(kind, (*where, "type"))
        return
    yield from _wrong_keys(declared, where, keys)
    symbols = declared.get("symbols", [])
    if kind == "enum" and not (isinstance(symbols, list) or IMPORT in mapping(symbols)):
        yield Fault((*where, "symbols"), "the symbols are no list", "write a list")
    yield from malformed(declared.get("items"), (*where, "items"))
    if not isinstance(declared.get("fields", {}), list | dict):
        right = "write a mapping of names to types"
        yield Fault((*where, "fields"), "the fields are no mapping", right)
    for _, body, below in _fields(declared, where):
        if isinstance(body, dict):
            is_listed = isinstance(below[-1], int)
            needed = ("name", "type") if is_listed else ("type",)
            yield from _wrong_keys(body, below, (needed, _FIELD))
            yield from malformed(body.get("type"), (*below, "type"))
        elif not isinstance(body, str | list):
            yield Fault(below, f"{_short(body)} is no type", "write a type")


def _wrong_keys(
    content: dict[str, JSON],
    where: KeyPath,
    keys: tuple[tuple[str, ...], tuple[str, ...]],
) -> Iterator[Fault]:
    """Yield keys that a mapping lacks, or that do not belong in it.

    :param keys: keys that are needed, and further keys
    """
    if IMPORT in content:
        return
    needed, others = keys
    allowed = (*needed, *others)
    missing = [key for key in needed if key not in content]
    for key in content:
        if key not in allowed and "://" not in key and ":" not in key:
            right = suggestion(key, missing or allowed)
            missing = [one for one in missing if f"did you mean {one}?" != right]
            yield Fault((*where, key), "unknown field", right)
    for key in missing:
        yield Fault(where, f"{key} is missing", f"add {key}:")
    for key, binding in _BINDINGS.items():
        if isinstance(inner := content.get(key), dict):
            yield from _wrong_keys(inner, (*where, key), ((), binding))


_BINDINGS = {
    "inputBinding": (
        *("loadContents", "position", "prefix", "separate", "itemSeparator"),
        *("valueFrom", "shellQuote"),
    ),
    "outputBinding": ("glob", "loadContents", "loadListing", "outputEval"),
}
_COMMON = ("name", "label", "doc", *_BINDINGS)
_FIELD = (
    *("name", "label", "doc", "secondaryFiles", "streamable", "format"),
    *("loadContents", "loadListing", *_BINDINGS),
)
# Keys that each kind of type needs, and further keys.
_KEYS = {
    "array": (("type", "items"), _COMMON),
    "enum": (("type", "symbols"), _COMMON),
    "record": (("type",), ("fields", *_COMMON)),
}


def misfit(source: Types, sink: Types) -> tuple[str, Types, Types]:
    """Return the innermost field in which two types do not fit, and its types in both.

    The field is empty if the types differ as a whole; a field that is missing in the source
    has no types there.
    """
    given, wanted = ([one for one in t if one.name != NULL] for t in (source, sink))
    if len(given) != 1 or len(wanted) != 1:
        return "", source, sink
    (one,), (other,) = given, wanted
    if one.name == other.name == "array" and not fits(one.items, other.items):
        inner = misfit(one.items, other.items)
        if inner[0]:
            return inner
    if one.name == other.name == "record":
        for name, expected in other.fields.items():
            made = one.fields.get(name, ())
            is_needed = not any(kind.name == NULL for kind in expected)
            if is_needed and (name not in one.fields or not fits(made, expected)):
                field, made, expected = misfit(made, expected)
                return f"{name}.{field}".rstrip("."), made, expected
    return "", source, sink


def _read(item: JSON) -> Iterator[Type]:
    """Yield the alternatives that one item of a declared type stands for."""
    if isinstance(item, str):
        if item.endswith("?"):
            yield Type(NULL)
            yield from _read(item[:-1])
        elif item.endswith("[]"):
            yield Type("array", tuple(_read(item[:-2])))
        elif item in STREAMS:
            yield Type("File")
        else:
            # StreamFlow takes the bare word "record" for a record with any fields.
            is_type = item in WORDS and item != "record"
            yield Type(item if is_type else UNKNOWN)
        return
    content = mapping(item)
    match content.get("type"):
        case "record" | "enum" as name if _has_import(content):
            yield Type(name, is_elsewhere=True)
        case "array":
            yield Type("array", read(content.get("items")))
        case "enum":
            names = [str(name) for name in listing(content.get("symbols"))]
            yield Type("enum", symbols=tuple(name.rpartition("/")[2] for name in names))
        case "record":
            fields = {
                name: read(declared(body)) for name, body, _ in _fields(content, ())
            }
            yield Type("record", fields=fields)
        case None:
            yield Type(UNKNOWN)
        case inner:
            yield from read(inner)


def _fields(
    content: dict[str, JSON], where: KeyPath
) -> Iterator[tuple[str, JSON, KeyPath]]:
    """Yield the name, type and key path of each field of a record."""
    above, fields = (*where, "fields"), content.get("fields")
    if IMPORT in mapping(fields):
        return
    for key, body in mapping(fields).items():
        yield key, body, (*above, key)
    for index, body in enumerate(fields if isinstance(fields, list) else []):
        name = str(mapping(body).get("name")).rpartition("/")[2]
        yield name.rpartition("#")[2], body, (*above, index)


def _has_import(content: dict[str, JSON]) -> bool:
    """Return whether another file contains fields of a record, or symbols of an enum."""
    parts = [content.get("fields"), *listing(content.get("symbols"))]
    parts += [body for _, body, _ in _fields(content, ())]
    return any(IMPORT in mapping(part) for part in parts)


def _fits(source: Type, sink: Type) -> bool:
    """Return whether a value of one alternative may match the other."""
    if {ANY, UNKNOWN} & {source.name, sink.name}:
        return True
    if source.name == sink.name == "array":
        return fits(source.items, sink.items)
    if source.name == sink.name == "record":
        return source.is_elsewhere or all(
            name in source.fields and fits(source.fields[name], types)
            for name, types in sink.fields.items()
            if not any(type_.name == NULL for type_ in types)
        )
    return source.name == sink.name or sink.name in WIDER.get(source.name, ())


def _fault(value: JSON, type_: Type, where: KeyPath) -> Fault | None:
    """Return why a value does not match an alternative; ``None`` if it matches."""
    if type_.is_elsewhere:
        return None
    wrong = f"{_short(value)} does not fit"
    right = f"its type is {type_}"
    if type_.name in FILES:
        return _file_fault(value, type_.name, where)
    if type_.name == "array":
        if not isinstance(value, list):
            return Fault(where, wrong, f"its type is {type_}: write a list")
        faults = (fault(v, type_.items, (*where, n)) for n, v in enumerate(value))
        return next(filter(None, faults), None)
    if type_.name == "enum":
        allowed = isinstance(value, str) and value in type_.symbols
        return None if allowed else Fault(where, wrong, _nearest(value, type_.symbols))
    if type_.name == "record":
        return _record_fault(value, type_, where)
    if type_.name in PRIMITIVE and type(value) not in PRIMITIVE[type_.name]:
        return Fault(where, wrong, right)
    return None


def _record_fault(value: JSON, type_: Type, where: KeyPath) -> Fault | None:
    """Return why a value does not match a record type."""
    if not isinstance(value, dict):
        wrong = f"{_short(value)} does not fit"
        return Fault(where, wrong, f"write the fields {', '.join(type_.fields)}")
    if value and not type_.fields:
        what = "StreamFlow takes no fields of a record that declares none"
        return Fault(where, what, "declare its fields")
    faults = (
        fault(value.get(name), types, (*where, name) if name in value else where)
        for name, types in type_.fields.items()
    )
    first = next(filter(None, faults), None)
    if first is not None and first.what == "the value is empty":
        missing_names = [name for name in type_.fields if name not in value]
        unknown_names = [name for name in value if name not in type_.fields]
        if missing_names and unknown_names:
            what = f"the record has no field {unknown_names[0]}"
            return Fault(
                (*where, unknown_names[0]),
                what,
                suggestion(unknown_names[0], missing_names),
            )
        what = f"the field {', '.join(missing_names)} is missing"
        return Fault(where, what, "add it") if missing_names else first
    return first


def _file_fault(value: JSON, kind: str, where: KeyPath) -> Fault | None:
    """Return why a value is not a valid file or folder."""
    right = f"write {{class: {kind}, path: ...}}"
    if not isinstance(value, dict):
        return Fault(where, f"the value is not a {kind}", right)
    actual = value.get("class")
    if actual not in FILES:
        what = (
            "class is missing" if actual is None else f"unknown class {_short(actual)}"
        )
        return Fault((*where, "class"), what, right)
    if actual != kind:
        return Fault(
            (*where, "class"), f"the value is a {actual}", f"its type is {kind}"
        )
    source = ("path", "location", "contents" if kind == "File" else "listing")
    if not any(key in value for key in source):
        extra = next((k for k in value if k not in ("class", "basename")), None)
        near = suggestion(extra, source) if extra else ""
        what = f"the {kind} has no path"
        return Fault(where, what, near if near.startswith("did") else right)
    faults = (
        fault(value[name], read(declared), (*where, name))
        for name, declared in FILE_FIELDS[kind].items()
        if name in value
    )
    return next(filter(None, faults), None)


def _nearest(value: JSON, valid_names: Iterable[str]) -> str:
    return suggestion(str(value), valid_names)


def _short(value: JSON) -> str:
    return f"{value!r:.40}"
