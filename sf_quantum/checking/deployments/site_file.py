"""Checks of a site's ``qrmi_config.json``: unknown keys and types, and duplicate names."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from sf_quantum import qpu
from sf_quantum.checking.document import Document, FileProblem, UnreadableError
from sf_quantum.errors import InputError
from sf_quantum.files import JSON, KeyPath, listing, mapping, read_json
from sf_quantum.qpu import qrmi_config

_ENTRY = ("name", "type", "environment")


def check(file: Path) -> Iterator[FileProblem]:
    """Check a file's keys, types and names; other checks report an unreadable file."""
    try:
        content = read_json(str(file), "QRMI configuration")
        qrmi_config.names(str(file))
    except InputError:
        return
    try:
        document = Document.read(file, "QRMI configuration")
    except UnreadableError:  # JSON that is not YAML; its lines are unknown
        document = Document(str(file), content, {(): 1})
    yield from _keys(document, content, (), ("resources",))
    seen: dict[JSON, int] = {}
    for number, entry in enumerate(map(mapping, listing(content["resources"]))):
        where: KeyPath = ("resources", number)
        yield from _entry(document, entry, where)
        if seen.setdefault(entry.get("name"), number) != number:
            what = f"resources[{seen[entry['name']]}] has this name, too"
            right = "keep one of them: the last one counts"
            yield document.remark((*where, "name"), what, right)


def _entry(
    document: Document, entry: dict[str, JSON], where: KeyPath
) -> Iterator[FileProblem]:
    """Check the definition of one QPU."""
    yield from _keys(document, entry, where, _ENTRY)
    kind, names = entry.get("type"), qpu.names()
    if isinstance(kind, str) and kind not in names:
        what = f"unknown QPU type {kind!r}"
        if meant := next((n for n in names if qrmi_config.near(n, [kind])), None):
            right = f"did you mean {meant}?"
            yield document.problem((*where, "type"), what, right)
        else:
            right = f"sfq reaches {', '.join(sorted(names))}"
            yield document.remark((*where, "type"), what, right)
    elif isinstance(kind, str):
        try:
            variables = qpu.load(kind).variables
        except InputError:  # a dependency of the QPU type is not installed
            return
        below = (*where, "environment")
        yield from _keys(document, mapping(entry.get("environment")), below, variables)


def _keys(
    document: Document,
    content: dict[str, JSON],
    where: KeyPath,
    valid_keys: tuple[str, ...],
) -> Iterator[FileProblem]:
    """Find keys that nothing reads.

    :param valid_keys: the keys that are read; empty if they are unknown
    """
    for key in content:
        if not valid_keys or key in valid_keys:
            continue
        missing = [name for name in valid_keys if name not in content]
        meant = next((name for name in missing if qrmi_config.near(name, [key])), None)
        if meant:
            right = f"did you mean {meant}?"
            yield document.problem((*where, key), "unknown key", right)
        else:
            right = f"known: {', '.join(valid_keys)}"
            yield document.remark((*where, key), "nothing reads this key", right)
