"""What the package says of itself is true and whole."""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import distribution

import yaml
from packaging.version import Version
from trove_classifiers import classifiers

from sf_quantum import __version__
from tests.support.folders import ROOT


def test_the_citation_is_of_the_last_release() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    last, *_ = re.findall(r"^## \[(\d[\d.]*)\]", changelog, re.M)
    assert citation["version"] == last
    # between two releases, the version is the next one's
    assert Version(last) == Version(__version__) or (
        Version(last) < Version(__version__) and Version(__version__).is_devrelease
    )
    assert {"cff-version", "message", "title", "authors"} <= citation.keys()


def test_the_classifiers_exist() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert set(project["classifiers"]) <= classifiers
    assert "Programming Language :: Python :: 3.11" in project["classifiers"]


def test_the_extras_that_messages_name_exist() -> None:
    texts = [path.read_text() for path in (ROOT / "sf_quantum").rglob("*.py")]
    named = re.compile(r"""sf-quantum\[([\w-]+)\]|^    extra = "([\w-]+)\"""", re.M)
    told = {one or other for text in texts for one, other in named.findall(text)}
    installed = distribution("sf-quantum")
    # what is installed under this name gets the extra, from a checkout as from an index
    assert installed.version == __version__
    assert told
    assert told <= {*(installed.metadata.get_all("Provides-Extra") or [])}
