"""Values in vendors' answers: times, counts, prices, counts of bit strings, ids of jobs."""

from __future__ import annotations

from typing import Annotated, TypeAlias

from sf_quantum.errors import QpuError
from sf_quantum.files import JSON, is_number, listing, mapping, parse_json
from sf_quantum.text import shortened


def number(value: JSON) -> float | None:
    """Read a time, a count or a price that a vendor reports.

    :returns: the value; ``None`` if it is not a number, or is negative, not finite (such as
        JSON's ``NaN``) or absurdly large
    """
    return value if is_number(value) and value >= 0 else None


def count(value: JSON) -> int | None:
    """Read a whole number that a vendor reports, as :func:`number` does."""
    return value if isinstance(value, int) and number(value) is not None else None


#: types of optional fields: an invalid value is read as ``None``, or as 0 for ``Size``
Amount: TypeAlias = Annotated[float | None, number]
Count: TypeAlias = Annotated[int | None, count]
# a count that is 0 if it is missing
Size: TypeAlias = Annotated[int, lambda value: count(value) or 0]


def counter(value: JSON) -> dict[str, int]:
    """Read the counts of bit strings.

    :raises ValueError: if the value is not an object with counts of bit strings
    """
    if not isinstance(value, dict):
        raise ValueError("no counts")
    read = {bits: count(n) for bits, n in value.items() if not bits.strip("01")}
    counts = {bits: n for bits, n in read.items() if n is not None}
    if len(counts) != len(value):
        raise ValueError("no counts of bit strings")
    return counts


def counters(who: str, text: str, circuits: int) -> list[dict[str, int]]:
    """Read the counts of a job's circuits, in the order of the circuits.

    :param who: name of the QPU, for error messages
    :param text: JSON text of the result
    :param circuits: number of circuits in the job
    :raises QpuError: if the counts of a circuit are missing or invalid
    """
    try:
        content = mapping(parse_json(text))
        counters = content.get("counters", content.get("counter"))
        counts = [counter(item) for item in listing(counters)]
        if len(counts) != circuits:
            raise ValueError("not of all circuits")
        return counts
    except ValueError as error:
        raise QpuError(f"{who}: its answer has no counts of bit strings") from error


def check_about(who: str, named: JSON, asked: str) -> None:
    """Check that an answer is about the requested job or submission.

    A cache, a proxy or the vendor may mix up answers. Another job's result may have the same
    shape, and could then not be told from the right result.

    :param who: name of the QPU or its service
    :param named: job id or submission tag in the answer; an answer without either is
        accepted
    :param asked: job id or submission tag in the request
    :raises QpuError: if the answer is about another job
    """
    if named not in (None, asked):
        other = shortened(str(named), 80)
        raise QpuError(f"{who}: it was asked about job {asked}, and tells of {other}")
