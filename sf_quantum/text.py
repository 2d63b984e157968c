"""Text for people: text from elsewhere, made safe to show, and common messages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from difflib import get_close_matches
from typing import TypeVar

T = TypeVar("T")
# most characters shown of a message, or a name, from elsewhere
MAX_CHARACTERS = 300
#: the first columns of a report's CSV
PERIOD = ("from", "until")
# the beginnings of a text that spreadsheets interpret as a formula
_FORMULAS = ("=", "+", "-", "@", "\t", "\r")


def escaped(text: str) -> str:
    """Escape characters that a terminal would act on, and line breaks.

    A byte of a file name that is not UTF-8 is shown as that byte: ``\\xe4``.
    """
    return "".join(char if char.isprintable() else _escape(char) for char in text)


def _escape(char: str) -> str:
    if "\udc80" <= char <= "\udcff":  # how Python reads a byte that is not UTF-8
        return f"\\x{ord(char) - 0xDC00:02x}"
    return char.encode("unicode_escape").decode()


def one_line(text: str) -> str:
    """Join the lines of a text, and escape it."""
    return escaped(" ".join(text.split()))


def shortened(text: str, max_characters: int = MAX_CHARACTERS) -> str:
    """Shorten a text of any length to one line of at most ``max_characters``.

    The middle is left out: messages begin with what failed, and end with why.
    """
    half = max_characters // 2
    if len(text) > 4 * max_characters:  # escaping all of it would take long
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
    """Make a row of a report's CSV: the period, texts, and numbers as plain decimals.

    :param period: beginning and end, in seconds since the epoch; ``None`` for an open
        beginning
    """
    cells = [decimal(v) if isinstance(v, float) else csv_cell(v) for v in values]
    return [*map(exact_utc, period), *cells]


def decimal(value: float) -> str:
    """Format a number as a plain decimal, to a millionth, for any spreadsheet."""
    return f"{value:.6f}".rstrip("0").rstrip(".")


# Last time that ``datetime`` can represent, in seconds since the epoch.
LAST_SECOND = 253_402_300_799


def utc(moment: float | None) -> str:
    """Format seconds since the epoch as a time in UTC; empty for no time."""
    if moment is None:
        return ""
    return f"{datetime.fromtimestamp(moment, UTC):%Y-%m-%dT%H:%M:%SZ}"


def exact_utc(moment: float | None) -> str:
    """Format seconds since the epoch as :func:`utc` does, with all microseconds.

    The end of a report's period is the beginning of the next one's: if either was rounded,
    jobs would be in both reports or in none.
    """
    if moment is None:
        return ""
    return datetime.fromtimestamp(moment, UTC).isoformat().replace("+00:00", "Z")


def rounded(value: float) -> str:
    """Format a number with three digits or, from 100 on, as a whole number."""
    return f"{value:.3g}" if value < 100 else f"{value:.0f}"


def plural(number: float, noun: str) -> str:
    """Return a number with its noun: ``1 retry``, ``2 retries``, ``0 QPU jobs``."""
    if number != 1:
        noun = f"{noun[:-1]}ies" if noun.endswith("ry") else f"{noun}s"
    shown = f"{number:,}" if isinstance(number, int) else f"{number:g}"
    return f"{shown} {noun}"


def described(error: BaseException) -> str:
    """Describe an error of a library in one line of at most 300 characters."""
    return one_line(str(error)[:2000])[:MAX_CHARACTERS] or type(error).__name__


def closest(name: str, valid_names: Sequence[str]) -> str | None:
    """Return the valid name that was probably meant; ``None`` if none is similar."""
    return next(iter(get_close_matches(name, valid_names, n=1)), None)


def unknown(kind: str, name: str, valid_names: Sequence[str]) -> str:
    """Return the message for an unknown name: the closest match and all known names.

    :param kind: the kind of thing that has the name, such as ``sampler``
    """
    close = closest(name, valid_names)
    meant = "" if close is None else f", did you mean {close!r}?"
    return f"unknown {kind} {name!r}{meant} (known: {', '.join(sorted(valid_names))})"
