"""A site's ``qrmi_config.json`` with mistakes: named as they are written, with file and key."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sf_quantum.checking import check_file
from sf_quantum.checking.document import FileProblem
from sf_quantum.errors import InputError
from sf_quantum.files import JSON
from sf_quantum.qpu import Qpu
from sf_quantum.qpu.selection import QpuSelection, client

FILE = """\
version: v1.0
workflows: {}
deployments:
  front: {type: sfq.rest, config: {qrmiConfig: site.json}}
"""
URL, TOKEN, MUNGE = "SFQ_URL", "SFQ_TOKEN_FILE", "SFQ_MUNGE"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("sf.yml").write_text(FILE)
    Path("token").write_text("secret\n")
    Path("token").chmod(0o600)


def written(
    environment: JSON, type_: str = "sfq", key: str = "environment", **more: JSON
) -> list[FileProblem]:
    """Write a file with an entry, and return what the check finds in it."""
    entry: dict[str, JSON] = {"name": "front", "type": type_, key: environment, **more}
    Path("site.json").write_text(json.dumps({"resources": [entry]}, indent=1))
    findings = check_file("sf.yml")
    return [
        one
        for one in (*findings.problems, *findings.remarks)
        if one.file == "site.json"
    ]


def refusal(type_: str = "sfq") -> str:
    """Why the clients refuse the file, empty if they do not."""
    selection = QpuSelection(["front"], qrmi_config="site.json")
    first = _error(lambda: selection.qpus({}))
    assert first == _error(
        lambda: [client(type_, "front", {"qrmiConfig": "site.json"})]
    )
    return first


def _error(make: Callable[[], list[Qpu]]) -> str:
    try:
        make()
    except InputError as error:
        return str(error)
    return ""


@st.composite
def misspelt(draw: st.DrawFn, word: str) -> str:
    """A word with a letter left out, added, doubled or changed, or two of them swapped."""
    at = draw(st.integers(1, len(word) - 2))
    return draw(
        st.sampled_from(
            [
                word[:at] + word[at + 1 :],
                word[:at] + "X" + word[at:],
                word[:at] + word[at] + word[at:],
                word[:at] + "X" + word[at + 1 :],
                word[:at] + word[at + 1] + word[at] + word[at + 2 :],
                word.swapcase(),
                f"front_{word}",
            ]
        ).filter(lambda other: other != word)
    )


CASE = settings(
    max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@CASE
@given(st.data(), st.sampled_from([URL, TOKEN, MUNGE]))
def test_a_misspelt_variable_is_found(data: st.DataObject, variable: str) -> None:
    environment: dict[str, JSON] = {
        URL: "http://127.0.0.1:1",
        TOKEN: "token",
        MUNGE: "1",
    }
    assert written(environment) == []
    other = data.draw(misspelt(variable))
    environment[other] = environment.pop(variable)
    (finding,) = written(environment)
    assert (finding.where[-1], finding.what) == (other, "unknown key")
    assert finding.right == f"did you mean {variable}?"
    # JSON with a key a line
    assert finding.line is not None
    assert f'"{other}"' in Path("site.json").read_text().splitlines()[finding.line - 1]
    if variable == URL:
        where = "site.json: resources[0].environment.SFQ_URL"
        assert refusal() == f"{where}: missing; {other!r} is there instead"


@CASE
@given(misspelt("environment"))
def test_a_misspelt_environment_is_found(other: str) -> None:
    (finding,) = written({URL: "http://127.0.0.1:1"}, key=other)
    assert (finding.where, finding.remark) == (("resources", 0, other), False)
    where = "site.json: resources[0].environment"
    assert refusal() == f"{where}: missing; {other!r} is there instead"


@pytest.mark.parametrize(
    ("environment", "refused"),
    [
        ({}, "environment.SFQ_URL: missing; add it"),
        ({URL: "nowhere"}, "environment.SFQ_URL: nowhere: expected unix:"),
        ({URL: "http://h.example"}, "environment.SFQ_URL: http://h.example: http is "),
        (
            {URL: "http://127.0.0.1:1", MUNGE: "yes"},
            "environment.SFQ_MUNGE: expected t",
        ),
    ],
)
def test_a_client_names_the_key_of_the_file(environment: JSON, refused: str) -> None:
    written(environment)
    assert refusal().startswith(f"site.json: resources[0].{refused}")
    problems = [str(problem) for problem in check_file("sf.yml").problems]
    assert len(problems) == 1
    assert re.search(re.escape(refused), problems[0])
    assert "front_SFQ" not in problems[0]


def test_other_keys_are_remarks() -> None:
    ours: JSON = {URL: "http://127.0.0.1:1", "OMP_NUM_THREADS": "1"}
    (finding,) = written(ours)
    assert (finding.where[-1], finding.remark) == ("OMP_NUM_THREADS", True)
    (finding,) = written({URL: "http://127.0.0.1:1"}, comment="of the lab")
    assert (finding.where[-1], finding.remark) == ("comment", True)
    # of its variables, only the vendor's client knows which there are
    assert written({"QRMI_WARDEN_URL": "http://127.0.0.1:1"}, "pasqal-local") == []


def test_an_unknown_kind_is_a_problem_if_it_is_misspelt() -> None:
    (finding,) = written({}, "pasqal_local")
    assert (finding.remark, finding.right) == (False, "did you mean pasqal-local?")
    (finding,) = written({}, "of a machine to come")
    assert finding.remark


def test_a_name_that_is_taken_is_a_remark() -> None:
    entry = {"name": "front", "type": "sfq", "environment": {URL: "http://127.0.0.1:1"}}
    Path("site.json").write_text(json.dumps({"resources": [entry, entry]}))
    (remark,) = [r for r in check_file("sf.yml").remarks if r.file == "site.json"]
    assert remark.what == "resources[0] has this name, too"
