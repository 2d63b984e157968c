"""Text that others wrote, as a terminal or a log shows it."""

from __future__ import annotations


def escaped(text: str) -> str:
    """Escape what a terminal would act on, and what would begin a new line."""
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode()
        for char in text
    )
