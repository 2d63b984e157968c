"""Licences that ``slurm.conf`` or slurmdbd defines, and reservations of licences."""

from __future__ import annotations

import re

COMMAND = ("scontrol", "--oneliner", "show", "licenses")
RESERVATIONS = ("scontrol", "--oneliner", "show", "reservation")
# patterns of licences in the output of these commands
_TOTAL = re.compile(r"^LicenseName=(\S+) Total=(\d+)", re.MULTILINE | re.ASCII)
_RESERVED = re.compile(r"^ReservationName=(\S+) .*?\bLicenses=(\S+)", re.MULTILINE)
_ITEM = re.compile(r"([^:=]+)(?:[:=](\d+))?", re.ASCII)


def totals(text: str) -> dict[str, int]:
    """Read each licence's total from the output of :data:`COMMAND`.

    A licence that slurmdbd defines is named ``NAME@SERVER``.
    """
    return {name: int(total) for name, total in _TOTAL.findall(text)}


def reserved(text: str) -> dict[str, str]:
    """Read each reservation's list of licences from the output of :data:`RESERVATIONS`."""
    return dict(_RESERVED.findall(text))


def units(text: str, license_: str) -> int:
    """Count the units of a licence in a list such as ``qpu@sfq:2,matlab``."""
    items = (_ITEM.fullmatch(item.strip()) for item in re.split("[,;|]", text))
    return sum(int(item[2] or 1) for item in items if item and item[1] == license_)
