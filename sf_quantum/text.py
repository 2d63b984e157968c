"""Text for people: external text made safe to show, formats, and common messages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from difflib import get_close_matches
from typing import TypeVar

T = TypeVar("T")
# largest number of characters shown of an external message or name
MAX_CHARACTERS = 300
#: the first columns of a report's CSV
PERIOD = ("from", "until")
# first characters of a text that spreadsheets interpret as a formula
_FORMULAS = ("=", "+", "-", "@", "\t", "\r")


def escaped(text: str) -> str:
    """Escape line breaks, and characters that control a terminal.

    In a file name, a byte that is not part of valid UTF-8 is shown as ``\\xe4``.
    """
    return "".join(char if char.isprintable() else _escape(char) for char in text)


def _escape(char: str) -> str:
    if "\udc80" <= char <= "\udcff":  # Python's substitute for a byte that is not UTF-8
        return f"\\x{ord(char) - 0xDC00:02x}"
    return char.encode("unicode_escape").decode()


def one_line(text: str) -> str:
    """Join the lines of a text, and escape it."""
    return escaped(" ".join(text.split()))


def shortened(text: str, max_characters: int = MAX_CHARACTERS) -> str:
    """Shorten a text of any length to one line of at most ``max_characters``.

    The middle is left out, since error messages begin with the operation that failed and end
    with the cause.
    """
    half = max_characters // 2
    if len(text) > 4 * max_characters:  # escaping the whole text would take long
        text = f"{text[: 2 * half]} ... {text[-2 * half :]}"
    if len(line := one_line(text)) <= max_characters:
        return line
    return f"{line[: half - 2]} ... {line[-(half - 3) :]}"


def csv_cell(value: T) -> T | str:
    """Prefix text that a spreadsheet would interpret as a formula, so that it stays text."""
    formula = isinstance(value, str) and value.startswith(_FORMULAS)
    return f"'{value}" if formula else value


def csv_row(
    period: tuple[float | None, float], values: Iterable[str | float | None]
) -> list[str | float | None]:
    """Make a row of a report's CSV: the period, then the values, with plain decimals.

    :param period: beginning and end, in seconds since the epoch; the beginning is ``None`` if
        it is open
    """
    cells = [decimal(v) if isinstance(v, float) else csv_cell(v) for v in values]
    return [*map(exact_utc, period), *cells]


def decimal(value: float) -> str:
    """Format a number with at most six decimals and no exponent, for any spreadsheet."""
    return f"{value:.6f}".rstrip("0").rstrip(".")


# Last time that ``datetime`` can represent, in seconds since the epoch.
LAST_SECOND = 253_402_300_799


def utc(moment: float | None) -> str:
    """Format seconds since the epoch as a time in UTC; empty for ``None``."""
    if moment is None:
        return ""
    return f"{datetime.fromtimestamp(moment, UTC):%Y-%m-%dT%H:%M:%SZ}"


def exact_utc(moment: float | None) -> str:
    """Format seconds since the epoch as :func:`utc` does, with all microseconds.

    A report's period begins where the previous report's period ends. If this time were
    rounded, some jobs would be in both reports or in neither.
    """
    if moment is None:
        return ""
    return datetime.fromtimestamp(moment, UTC).isoformat().replace("+00:00", "Z")


def rounded(value: float) -> str:
    """Format a number with three significant digits or, from 100 on, as a whole number."""
    return f"{value:.3g}" if value < 100 else f"{value:.0f}"


def plural(number: float, noun: str) -> str:
    """Return a number with its noun: ``1 retry``, ``2 retries``, ``0 QPU jobs``."""
    if number != 1:
        noun = f"{noun[:-1]}ies" if noun.endswith("ry") else f"{noun}s"
    shown = f"{number:,}" if isinstance(number, int) else f"{number:g}"
    return f"{shown} {noun}"


def described(error: BaseException) -> str:
    """Describe a library's error in one line of at most 300 characters."""
    return one_line(str(error)[:2000])[:MAX_CHARACTERS] or type(error).__name__


def closest(name: str, valid_names: Sequence[str]) -> str | None:
    """Return the valid name that is most similar; ``None`` if none is similar enough."""
    return next(iter(get_close_matches(name, valid_names, n=1)), None)


def unknown(kind: str, name: str, valid_names: Sequence[str]) -> str:
    """Return the message for an unknown name, with the closest and all valid names.

    :param kind: noun for what has the name, such as ``sampler``
    """
    close = closest(name, valid_names)
    meant = "" if close is None else f", did you mean {close!r}?"
    return f"unknown {kind} {name!r}{meant} (known: {', '.join(sorted(valid_names))})"
