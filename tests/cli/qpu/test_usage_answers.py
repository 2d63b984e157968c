"""``sfq usage`` where the answer is not, or not quite, a report of a QPU service."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from sf_quantum.cli import main
from sf_quantum.files import JSON, MAX_NUMBER, mapping
from tests.support.changed_json import changed
from tests.support.scripted import scripted_server

ROW: JSON = {"user": "ann", "jobs": 2, "qpu_seconds": 1.5, "cost": None}
REPORT: dict[str, JSON] = {
    "from": None,
    "until": 1_800_000_000.5,
    "count": 1,
    "rows": [ROW],
    "total": {"jobs": 2, "qpu_seconds": 1.5, "cost": None},
}


@settings(
    deadline=None,
    max_examples=40,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(answer=changed(REPORT), form=st.sampled_from([[], ["--csv"], ["--json"]]))
def test_any_answer_is_shown_or_refused_in_one_line(
    answer: JSON, form: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    # More pages would be asked for.
    count = mapping(answer).get("count")
    assume(not isinstance(count, int | float) or not 1 < count <= MAX_NUMBER)
    with scripted_server([(200, answer)]) as server:
        code = main(["usage", "--url", server.url, *form])
    output, errors = capsys.readouterr()
    assert (code, errors.count("\n")) in ((0, 0), (1, 1), (75, 1))
    assert bool(output) == (code == 0)


def test_a_report_without_rows_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    answer = {key: value for key, value in REPORT.items() if key != "rows"}
    with scripted_server([(200, answer)]) as server:
        assert main(["usage", "--url", server.url]) != 0
    expected = "its answer is not a report, is it sfq serve? rows: missing"
    assert expected in capsys.readouterr().err
