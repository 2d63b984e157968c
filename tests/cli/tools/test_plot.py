"""Where ``sfq plot`` finds Matplotlib's list of fonts, since HOME is a job's folder in CWL."""

from __future__ import annotations

import os
import pwd
from pathlib import Path
from types import SimpleNamespace

import pytest

from sf_quantum.cli.tools import plot


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    entry = SimpleNamespace(pw_dir=str(tmp_path))
    monkeypatch.setattr(pwd, "getpwuid", lambda _: entry)
    # monkeypatch also restores a variable that the test sets
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    monkeypatch.delenv("XDG_CACHE_HOME")
    return tmp_path


def test_list_of_fonts_is_the_users_own(home: Path) -> None:
    (home / ".cache" / "matplotlib").mkdir(parents=True)
    plot._share_font_list()
    assert os.environ["XDG_CACHE_HOME"] == str(home / ".cache")


def test_cache_that_the_environment_names_is_kept(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / ".cache" / "matplotlib").mkdir(parents=True)
    monkeypatch.setenv("XDG_CACHE_HOME", "/elsewhere")
    plot._share_font_list()
    assert os.environ["XDG_CACHE_HOME"] == "/elsewhere"


@pytest.mark.usefixtures("home")
def test_no_list_is_made_in_the_users_home() -> None:
    plot._share_font_list()
    assert "XDG_CACHE_HOME" not in os.environ


def test_user_without_an_entry_has_a_list_of_the_job(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(_: int) -> None:
        raise KeyError("getpwuid(): uid not found: 4711")

    (home / ".cache" / "matplotlib").mkdir(parents=True)
    monkeypatch.setattr(pwd, "getpwuid", missing)
    plot._share_font_list()
    assert "XDG_CACHE_HOME" not in os.environ
