"""Numbers and times as Slurm's commands print and accept them."""

from __future__ import annotations

import re

_COUNT = re.compile(r"(\d{1,15})(?:\.(\d{1,3}))?([KMGTP]?)", re.ASCII | re.IGNORECASE)
_STATUS = re.compile(r"(\d{1,5})(?::(\d{1,3}))?", re.ASCII)
_EPOCH = re.compile(r"\d{1,15}", re.ASCII)


def count(text: str) -> int | None:
    """Read a count, which Slurm shortens to ``10K`` if 1024 divides it.

    :returns: ``None`` if the text is not a count
    """
    if (match := _COUNT.fullmatch(text)) is None:
        return None
    number = float(f"{match[1]}.{match[2]}") if match[2] else int(match[1])
    # The index of the suffix is its power of 1024: 0 without a suffix, 1 for K.
    return int(number * 1024 ** (" KMGTP".index(match[3].upper() or " ")))


def epoch(text: str) -> float | None:
    """Read a time printed with ``SLURM_TIME_FORMAT=%s``; ``None`` for a text like ``N/A``."""
    return float(text) if _EPOCH.fullmatch(text) else None


def wait_status(text: str) -> int | None:
    """Read a job's exit status, encoded as in wait(2).

    :param text: the status as a number (``256``), as ``squeue`` of 22.05 prints it, or exit
        code and signal (``1:0``)
    :returns: ``None`` if the text has neither form
    """
    if (match := _STATUS.fullmatch(text)) is None:
        return None
    return int(match[1]) if match[2] is None else int(match[1]) << 8 | int(match[2])


def limit_seconds(limit: str) -> float | None:
    """Return the seconds of a time limit as in sbatch(1); ``None`` for other texts."""
    match = re.fullmatch(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?", limit)
    if match is None:
        return None
    days, *parts = match.groups()
    numbers = [int(part) for part in parts if part is not None]
    if days is None and len(numbers) < 3:
        numbers.insert(0, 0)  # the first number is minutes; in all other cases, hours
    hours, minutes, seconds = [*numbers, 0, 0][:3]
    return ((int(days or 0) * 24 + hours) * 60 + minutes) * 60.0 + seconds
