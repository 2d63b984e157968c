"""GPUs, QPUs and other resources of jobs and nodes, in all spellings of Slurm's commands.

``gres:gpu:2`` (until 23.02) and ``gres/gpu:2`` are one request, as are ``gpu:a100:2`` and
``gres/gpu:a100=2``. A licence has the same form, and may name its server: ``qpu@site:2``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from sf_quantum.files import JSON
from sf_quantum.slurm.counts import count

#: the texts that Slurm's commands print for an empty request
NOTHING = ("", "(null)", "N/A", "NONE", "None")
_PREFIX = re.compile(r"gres[:/]")
# the sockets or indices of a node's GPUs: gpu:a100:2(S:0-1), gpu:2(IDX:0,3)
_PLACES = re.compile(r"\([^()]*\)")
_NAME = re.compile(r"[^\s:=,@()/]+")
_TYPE = re.compile(r"[^\s:=,@()]+")


class Resource(NamedTuple):
    """A number of units of a resource.

    :param type: the kind of unit, such as ``a100``; empty if it is not stated
    """

    name: str
    type: str
    units: int

    def __str__(self) -> str:
        """Return the resource in the format of ``--gres``."""
        return ":".join(filter(None, (self.name, self.type, str(self.units))))


def bare(item: str) -> str:
    """Return an item without the prefix that says what sort of resource it is."""
    return _PREFIX.sub("", item, count=1) if _PREFIX.match(item) else item


def names_qpu(*texts: JSON) -> bool:
    """Return whether a resource, a licence or a partition is named after QPUs."""
    return any("qpu" in str(text).lower() for text in texts)


def requests_qpu(options: Mapping[str, JSON]) -> bool:
    """Return whether options of ``sbatch`` request a QPU as a resource or a licence."""
    return names_qpu(options.get("gres"), options.get("licenses"))


def parse(text: str) -> list[Resource]:
    """Read a list of resources; an item without a number is one unit.

    Items that are not counts of units, such as ``mem=16G`` in ``AllocTRES``, are read like the
    others, by their numbers. Malformed items are left out.
    """
    if text.strip() in NOTHING:
        return []
    items = map(_resource, _PLACES.sub("", text).split(","))
    return [item for item in items if item is not None]


def units(text: str) -> dict[str, int]:
    """Sum the units of each resource over its types.

    If a list has a resource with and without its types (``gres/gpu=2,gres/gpu:a100=2``), the
    item without a type is the total.
    """
    sums: dict[str, int] = {}
    typed: dict[str, int] = {}
    for name, type_, number in parse(text):
        of = typed if type_ else sums
        of[name] = of.get(name, 0) + number
    return typed | sums


def matching(wanted: Resource, text: str) -> int:
    """Return how many units of a list can serve a request, which may name their type."""
    return sum(
        one.units
        for one in parse(text)
        if one.name == wanted.name and wanted.type in ("", one.type)
    )


def _resource(item: str) -> Resource | None:
    name, *words = re.split("[:=]", bare(item.strip()))
    name = name.partition("@")[0]
    number = count(words[-1]) if words else 1
    if number is None:
        number = 1
    elif words:
        words.pop()
    if not _NAME.fullmatch(name) or len(words) > 1:
        return None
    type_ = words[0] if words else ""
    if type_ and not _TYPE.fullmatch(type_):
        return None
    return Resource(name, type_, number)
