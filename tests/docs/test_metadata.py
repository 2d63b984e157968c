"""What the package says of itself is true and whole."""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import distribution

import yaml
from trove_classifiers import classifiers

from sf_quantum import __version__
from tests.support.folders import ROOT


def test_the_citation_is_of_this_version() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == __version__
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
