"""Copies of data from vendors, limited in size and with printable texts."""

from __future__ import annotations

import math
from dataclasses import dataclass

from sf_quantum.files import JSON
from sf_quantum.text import shortened

# Longest text within the data: enough for a paragraph, such as a calibration's note.
MAX_TEXT = 2000
MAX_DEPTH = 16


class TooLarge(ValueError):
    """The data are larger than the limit, or nested too deeply."""


@dataclass
class _Budget:
    characters: int

    def take(self, characters: int) -> None:
        self.characters -= characters
        if self.characters < 0:
            raise TooLarge("too large")


def plain(content: JSON, max_characters: int) -> JSON:
    """Copy data with printable texts; numbers that are not finite become ``None``.

    Very large integers, and values that are not JSON (an untyped client may return such
    values), also become ``None``.

    :param max_characters: approximate limit on the characters of the data's JSON text
    :raises TooLarge: if the text is longer, or the data are nested too deeply
    """
    return _plain(content, _Budget(max_characters), 0)


def _plain(content: JSON, budget: _Budget, depth: int) -> JSON:
    """Copy a value as JSON; invalid numbers and other types become ``None``."""
    if depth > MAX_DEPTH:
        raise TooLarge("nested too deeply")
    if isinstance(content, str):
        return _text(content, budget)
    if isinstance(content, dict):
        return {
            _text(str(key), budget): _plain(value, budget, depth + 1)
            for key, value in content.items()
        }
    if isinstance(content, list | tuple):
        budget.take(2)
        return [_plain(value, budget, depth + 1) for value in content]
    budget.take(8)
    if isinstance(content, bool) or content is None:
        return content
    if isinstance(content, int):  # not every JSON library supports longer integers
        return content if content.bit_length() <= 1023 else None
    if isinstance(content, float):
        return content if math.isfinite(content) else None
    return None


def _text(text: str, budget: _Budget) -> str:
    if len(text) > MAX_TEXT or not text.isprintable():
        text = shortened(text, MAX_TEXT)
    budget.take(len(text) + 4)
    return text
