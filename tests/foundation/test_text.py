"""Text that others wrote, as it is shown."""

from __future__ import annotations

import os

import pytest

from sf_quantum.text import escaped


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("Läufe 日本", "Läufe 日本"),
        ("a\x1b[2J\nb", r"a\x1b[2J\nb"),
        (os.fsdecode(b"L\xe4ufe"), r"L\xe4ufe"),
        ("\ud800", r"\ud800"),
    ],
)
def test_only_what_a_terminal_acts_on_is_escaped(text: str, shown: str) -> None:
    assert escaped(text) == shown
