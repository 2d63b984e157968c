"""What the package says of itself is true and whole."""

from __future__ import annotations

import tomllib

import yaml
from trove_classifiers import classifiers

from sf_quantum import __version__
from tests.docs.examples import ROOT


def test_the_citation_is_of_this_version() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == __version__
    assert {"cff-version", "message", "title", "authors"} <= citation.keys()


def test_the_classifiers_exist() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert set(project["classifiers"]) <= classifiers
    assert "Programming Language :: Python :: 3.11" in project["classifiers"]
