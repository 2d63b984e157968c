"""GPUs, QPUs and other resources of jobs and nodes, in all spellings of Slurm's commands.

``gres:gpu:2`` (until 23.02) and ``gres/gpu:2`` are the same request, as are ``gpu:a100:2``
and ``gres/gpu:a100=2``. A licence has the same form, and may name its server:
``qpu@site:2``.
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
# sockets or indices of GPUs in a node: gpu:a100:2(S:0-1), gpu:2(IDX:0,3)
_PARENTHESES = re.compile(r"\([^()]*\)")
_NAME = re.compile(r"[^\s:=,@()/]+")
_TYPE = re.compile(r"[^\s:=,@()]+")


class Resource(NamedTuple):
    """A number of units of a resource.

    :param type: type of the units, such as ``a100``; empty if not stated
    """

    name: str
    type: str
    units: int

    def __str__(self) -> str:
        """Return the resource in the format of ``--gres``."""
        return ":".join(filter(None, (self.name, self.type, str(self.units))))


def bare(item: str) -> str:
    """Return an item of a list without the prefix ``gres/`` or ``gres:``."""
    return _PREFIX.sub("", item, count=1) if _PREFIX.match(item) else item


def names_qpu(*texts: JSON) -> bool:
    """Return whether the name of a resource, a licence or a partition contains ``qpu``."""
    return any("qpu" in str(text).lower() for text in texts)


def requests_qpu(options: Mapping[str, JSON]) -> bool:
    """Return whether options of ``sbatch`` request a QPU as a resource or a licence."""
    return names_qpu(options.get("gres"), options.get("licenses"))


def parse(text: str) -> list[Resource]:
    """Read a list of resources; an item without a number is one unit.

    Items in other measures, such as ``mem=16G`` in ``AllocTRES``, are read in the same way,
    with their number as the units. Malformed items are left out.
    """
    if text.strip() in NOTHING:
        return []
    items = map(_resource, _PARENTHESES.sub("", text).split(","))
    return [item for item in items if item is not None]


def units(text: str) -> dict[str, int]:
    """Sum the units of each resource over its types.

    If a list has a resource both without and with a type (``gres/gpu=2,gres/gpu:a100=2``), the
    item without a type is the total.
    """
    sums: dict[str, int] = {}
    typed: dict[str, int] = {}
    for name, type_, number in parse(text):
        totals = typed if type_ else sums
        totals[name] = totals.get(name, 0) + number
    return typed | sums


def matching(wanted: Resource, text: str) -> int:
    """Return the number of units in a list that match a request's name and type, if given."""
    return sum(
        resource.units
        for resource in parse(text)
        if resource.name == wanted.name and wanted.type in ("", resource.type)
    )


def _resource(item: str) -> Resource | None:
    """Read one item of a list; ``None`` if it is malformed."""
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
