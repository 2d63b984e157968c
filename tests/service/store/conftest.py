"""The database of a service, in a file of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from sf_quantum.service.store.store import Store


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "service.sqlite"


@pytest.fixture
def store(path: Path) -> Iterator[Store]:
    opened = Store(path)
    yield opened
    opened.close()
