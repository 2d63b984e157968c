"""Commands where the answer is not, or not quite, that of a QPU service."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
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
    # A second page repeats the first one, so a third page is not requested.
    with scripted_server([(200, answer), (200, answer)]) as server:
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


LEASE_ROW: JSON = {
    **{"lease": "a" * 32, "user": "ann", "project": None},
    **{"slurm_job_id": "77", "slurm_cluster": None, "slurm_account": None},
}
LEASES: dict[str, JSON] = {"count": 2, "rows": [LEASE_ROW]}
TRACED: JSON = {"name": "q", "technology": "annealer"}


@settings(
    deadline=None,
    max_examples=40,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(answer=changed(LEASES))
def test_any_report_of_leases_is_traced_or_refused_in_one_line(
    answer: JSON, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "qpu.csv"
    # A second page repeats the first one, so a third page is not requested.
    with scripted_server(
        [(200, TRACED), (200, []), (200, answer), (200, answer)]
    ) as server:
        code = main(["usage", "--trace", str(path), "--url", server.url])
        assert len(server.credentials) <= 4
    output, errors = capsys.readouterr()
    assert (code, errors.count("\n")) in ((0, 0), (1, 1), (75, 1))
    assert bool(output) == (code == 0)


def test_a_row_of_a_traced_report_without_a_lease_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report: JSON = {"count": 3, "rows": [{"user": name} for name in "abc"]}
    path = tmp_path / "qpu.csv"
    with scripted_server([(200, TRACED), (200, []), (200, report)]) as server:
        assert main(["usage", "--trace", str(path), "--url", server.url]) == 75
    errors = capsys.readouterr().err
    assert (
        "its answer is not a report, is it sfq serve? rows[0].lease: missing" in errors
    )
    assert errors.count("\n") == 1
    assert not path.exists()


@pytest.mark.parametrize("rows", [[], [ROW]])
def test_a_report_with_fewer_rows_than_its_count_ends(
    rows: list[JSON], capsys: pytest.CaptureFixture[str]
) -> None:
    report: JSON = {**REPORT, "count": MAX_NUMBER, "rows": rows}
    with scripted_server([(200, report)] * 3) as server:
        assert main(["usage", "--csv", "--url", server.url]) == 0
        assert len(server.credentials) <= 2
    assert capsys.readouterr().out.count("\n") == 1 + len(rows)


AUDIT: JSON = {
    "number": 1,
    "time": 1_800_000_000.5,
    "user": "ann",
    "action": "drain",
    "parameters": {"of": "bob"},
    "old": {"status": "open"},
    "new": {"status": "draining"},
    "outcome": "done",
}
PARAMETER: JSON = {"name": "loss", "what": "", "unit": "", "least": 0, "most": 1.5}
OPERATION: JSON = {
    "name": "drift",
    "what": "",
    "parameters": [PARAMETER],
    "drained": True,
    "now": {"loss": 1},
}
WINDOW: JSON = {"id": 1, "starts": 1_800_000_000.5, "ends": None, "message": ""}
DEVICE: JSON = {
    "name": "q",
    "technology": "annealer",
    "status": "online",
    "reason": "",
    "leases": 0,
    "vqpus": 1,
    "leases_waiting": 0,
    "queue_length": 2,
}
LEASE: JSON = {
    "id": "a" * 32,
    "user": "ann",
    "job": None,
    "held": True,
    "closed": None,
    "reason": None,
}
COMMANDS: dict[str, list[JSON]] = {
    "admin audit": [[AUDIT]],
    "admin maintenance": [[WINDOW]],
    "admin operations": [[OPERATION]],
    "admin status": [DEVICE, [WINDOW]],
    "leases list": [[LEASE]],
}


@pytest.mark.parametrize("command", COMMANDS)
@settings(
    deadline=None,
    max_examples=20,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(data=st.data(), number=st.integers(0, 1))
def test_any_answer_of_the_admins_actions_is_shown_or_refused_in_one_line(
    command: str, data: st.DataObject, number: int, capsys: pytest.CaptureFixture[str]
) -> None:
    answers = [*COMMANDS[command]]
    number %= len(answers)
    answers[number] = data.draw(changed(answers[number]))
    with scripted_server([(200, answer) for answer in answers]) as server:
        code = main([*command.split(), "--url", server.url])
    output, errors = capsys.readouterr()
    assert (code, errors.count("\n")) in ((0, 0), (1, 1), (75, 1))
    assert bool(output) == (code == 0)


def test_an_entry_of_the_audit_without_its_time_is_refused(
    capsys: pytest.CaptureFixture[str],
) -> None:
    entry = {key: value for key, value in mapping(AUDIT).items() if key != "time"}
    answer: JSON = [entry]
    with scripted_server([(200, answer)]) as server:
        assert main(["admin", "audit", "--url", server.url]) != 0
    expected = "its answer is not an entry of the audit, is it sfq serve? time: missing"
    assert expected in capsys.readouterr().err
