"""The page on the architecture names modules that exist, and short ways through them."""

from __future__ import annotations

import re

import pytest

from tests.support.folders import ROOT

PAGE = (ROOT / "docs/explanation/architecture.md").read_text(encoding="utf-8")
MODULE = re.compile(r"`((?:[a-z_0-9]+/)+[a-z_0-9]+\.py)`")


def test_the_modules_exist() -> None:
    named = MODULE.findall(PAGE)
    assert len(named) > 40
    assert not [
        name
        for name in named
        if not any((ROOT / at / name).exists() for at in ("", "sf_quantum"))
    ]


@pytest.mark.parametrize(
    ("title", "modules"),
    [("One BQM", 29), ("One Slurm job", 10), ("One decision", 7), ("One SAPI", 3)],
)
def test_the_ways_are_short(title: str, modules: int) -> None:
    """Half of what they were when everything of the service was in one flat folder."""
    section = PAGE.split(f"## {title}")[1].split("\n## ")[0]
    passed = re.findall(r"^\d+\. .*?`([a-z_/0-9]+\.py)`", section, flags=re.M)
    assert 0 < len(set(passed)) <= modules
