"""What the gate reads of OpenPBS 23.06, and of the environment of jobs."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

import pytest
from hypothesis import given, settings

from sf_quantum import structs
from sf_quantum.errors import InputError, QpuError
from sf_quantum.files import JSON
from sf_quantum.protocol.leases import LeaseHints
from sf_quantum.qpu.leasing.batch_jobs import BatchJob
from sf_quantum.qpu.leasing.gating import in_job, pbs
from sf_quantum.qpu.leasing.gating.job_requests import parse_request
from sf_quantum.qpu.leasing.gating.pbs import PbsJob, Status
from sf_quantum.qpu.leasing.gating.scheduler import GatedJob
from tests.support.changed_json import changed

HELD: dict[str, JSON] = {
    "Job_Owner": "ada@login",
    "euser": "ada",
    "job_state": "H",
    "queue": "workq",
    "Hold_Types": "o",
    "Resource_List": {
        **{"ncpus": "1", "place": "pack", "qpu": "fresnel"},
        **{"qpu_seconds": "1.5", "qpu_shots": "1000"},
    },
}


def gated(**attributes: JSON) -> GatedJob:
    return structs.read(PbsJob, {**HELD, **attributes}).gated


def test_resources_of_a_job_are_its_request() -> None:
    job = gated()
    assert parse_request(job.request) == (
        "fresnel",
        LeaseHints(expected_seconds=1.5, max_qpu_seconds=1.5, max_shots=1000),
    )
    assert (job.user, job.is_held, job.is_pending, job.may_start) == (
        *("ada", True, True, True),
    )


@pytest.mark.parametrize(
    ("state", "holds", "is_held"),
    [
        ("H", "o", True),
        ("H", "ou", False),
        ("H", "so", False),
        ("H", "u", False),
        ("R", "o", False),
        ("Q", "n", False),
    ],
)
def test_only_the_operators_hold_is_the_gates(
    state: str, holds: str, is_held: bool
) -> None:
    assert gated(job_state=state, Hold_Types=holds).is_held is is_held


@pytest.mark.parametrize(
    ("state", "counts", "is_pending"),
    [
        ("Q", None, True),
        ("W", None, True),
        ("T", None, True),
        ("R", None, False),
        ("E", None, False),
        ("S", None, False),
        ("H", "Queued:3 Running:0 Exiting:0 Expired:0 ", True),
        ("H", "Queued:1 Running:2 Exiting:0 Expired:0 ", False),
        ("B", "Queued:1 Running:0 Exiting:0 Expired:2 ", False),
    ],
)
def test_a_job_with_nodes_is_not_pending(
    state: str, counts: str | None, is_pending: bool
) -> None:
    assert gated(job_state=state, array_state_count=counts).is_pending is is_pending


def test_a_job_waits_for_its_time() -> None:
    for delay, may_start in ((60, False), (-60, True)):
        start = str(int(time.time()) + delay)
        assert gated(Execution_Time=start).may_start is may_start


def test_a_name_with_a_separator_is_not_cut() -> None:
    request = gated(Resource_List={"qpu": "a,b qpu-shots=1"}).request
    assert parse_request(request) == ("a+b+qpu-shots=1", LeaseHints())


def test_jobs_are_listed_in_the_order_of_submission() -> None:
    job = structs.read(PbsJob, HELD)
    jobs = {f"{id_}.pbs-1": job for id_ in ("10", "9[]", "8")}
    status = Status(["pbs-1"], {**jobs, "1.elsewhere": job})
    assert [*status.jobs_of("pbs-1")] == ["8", "9[]", "10"]
    assert not Status(["pbs-1"], {}).jobs_of("pbs-1")


@pytest.mark.parametrize("output", ["", "[]", "{}", "libpbs.so", "[" * 100_000])
def test_other_output_is_not_an_empty_queue(
    output: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pbs, "run_command", lambda *_: output)
    with pytest.raises(QpuError, match=r"^PBS: "):
        pbs.list_status()


def test_a_job_without_a_state_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    job = {key: value for key, value in HELD.items() if key != "job_state"}
    output = json.dumps({"servers": ["pbs-1"], "jobs": {"7.pbs-1": job}})
    monkeypatch.setattr(pbs, "run_command", lambda *_: output)
    message = "PBS: not its list of jobs: jobs.7.pbs-1.job_state: missing"
    with pytest.raises(QpuError, match=re.escape(message)):
        pbs.list_status()


@settings(deadline=None)
@given(changed({"servers": ["pbs-1"], "jobs": {"7[].pbs-1": HELD, "8.pbs-1": HELD}}))
def test_any_output_is_read_or_refused_in_one_line(output: JSON) -> None:
    message = ""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pbs, "run_command", lambda *_: json.dumps(output))
        try:
            jobs = pbs.list_status().jobs_of("pbs-1")
            assert all(job.gated.user == job.user for job in jobs.values())
        except QpuError as error:
            message = str(error)
    assert message.isprintable()


def test_a_host_without_pbs_says_what_is_missing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    conf = tmp_path / "pbs.conf"
    monkeypatch.setenv("PBS_CONF_FILE", str(conf))
    with pytest.raises(QpuError, match=r"^PBS: cannot read .*pbs\.conf"):
        pbs.list_status()
    conf.write_text(f"PBS_EXEC={tmp_path}\n")
    with pytest.raises(QpuError, match=r"^PBS: .*libpbs\.so"):
        pbs.list_status()


def test_the_tasks_of_an_array_are_one_job() -> None:
    task = {"PBS_JOBID": "7[2].pbs-1", "PBS_ARRAY_ID": "7[].pbs-1", "LOGNAME": "ada"}
    assert pbs.job_of(task) == (BatchJob("PBS", "pbs-1", "7[]"), "ada")
    assert pbs.job_of({"PBS_JOBID": "7.pbs-1"}) == (BatchJob("PBS", "pbs-1", "7"), "")
    assert pbs.job_of({}) is None


def test_outside_a_batch_job_no_lease_is_found() -> None:
    with pytest.raises(InputError, match=r"PBS_JOBID.* is not set"):
        in_job.held_environment([], {})
