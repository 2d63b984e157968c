"""The contract tests of QPU kinds.

Tests that need no QPU run for every registered kind, a site's own included::

    pytest --pyargs sf_quantum.testing.qpus -k TYPE

For the other tests, subclass :class:`QpuContract`, with a QPU or a stand-in for it::

    class TestMine(QpuContract):
        @pytest.fixture
        def driver(self) -> Qpu:
            return qpu.load("mine").from_config("one", {"url": ...})
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest
from dimod import SampleSet

from sf_quantum import qpu
from sf_quantum.errors import InputError
from sf_quantum.files import JSON
from sf_quantum.qpu import RESOURCES, TYPES, Qpu
from sf_quantum.samplers.problem import document

#: enough reads for any working QPU to find the optimum of two variables
READS = 100


def problem() -> dict[str, JSON]:
    """Serialize two variables that exclude each other; the lowest energy is -1.5."""
    return document(["one", "other"], [-1.0, -0.25], [(0, 1)], [2.0], "BINARY", -0.5)


@pytest.fixture(params=qpu.names())
def kind(request: pytest.FixtureRequest) -> type[Qpu]:
    """Each registered kind."""
    return qpu.load(str(request.param))


def test_it_is_a_qpu_under_its_own_name(kind: type[Qpu]) -> None:
    assert issubclass(kind, Qpu)
    assert kind.type in qpu.names()
    assert qpu.load(kind.type) is kind


def test_it_reports_whether_it_can_be_used_here(kind: type[Qpu]) -> None:
    problem = kind.problem()
    assert problem is None or (problem.strip() and "\n" not in problem)


def test_an_unknown_key_is_named(kind: type[Qpu]) -> None:
    with pytest.raises(InputError, match="no_such_key"):
        kind.from_config("one", {"no_such_key": "x"})


def test_an_empty_environment_names_what_is_missing(kind: type[Qpu]) -> None:
    with pytest.raises(InputError, match=r"[A-Za-z]+_[A-Z_]+"):
        kind.from_environment("one", {})


class QpuContract:
    """The contract of a QPU that is online; override :meth:`driver`."""

    @pytest.fixture
    def driver(self) -> Qpu:
        """Return the driver's side of a QPU with a free lease."""
        raise NotImplementedError

    @pytest.fixture
    def lease(self, driver: Qpu) -> Iterator[str]:
        """Hold a lease during a test."""
        token = driver.acquire()
        yield token
        driver.release(token)

    def test_it_reports_its_status(self, driver: Qpu) -> None:
        status = driver.status()
        assert status.online
        assert not status.reason
        assert status.name
        assert status.technology
        assert status.qubits >= 0
        assert status.leases >= 0
        assert status.vqpus >= 1
        assert status.queue_length >= 0

    def test_a_lease_is_acquired_renewed_and_released(self, driver: Qpu) -> None:
        token = driver.acquire("the contract's")
        assert token
        seconds = driver.renew(token)
        assert seconds is None or seconds > 0
        driver.release(token)
        driver.release(token)
        # the lease is free again
        driver.release(driver.acquire())

    def test_the_job_finds_the_qpu_in_its_environment(
        self, driver: Qpu, lease: str
    ) -> None:
        variables = qpu.environment([(driver, lease)])
        for key, value in variables.items():
            # a shell must be able to read the variables from a file
            assert re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", key)
            assert "\n" not in value
        assert variables[RESOURCES[0]] == driver.name
        assert variables[TYPES[0]] == driver.type
        job = qpu.from_environment(variables)
        assert isinstance(job, type(driver))
        assert job.name == driver.name
        assert job.environment(lease) == driver.environment(lease)

    def test_a_job_solves_and_is_accounted_for(self, driver: Qpu, lease: str) -> None:
        job = qpu.from_environment(qpu.environment([(driver, lease)]))
        assert job is not None
        samples = job.solve(problem(), {"num_reads": READS, "seed": None})
        text = json.dumps(samples, allow_nan=False)
        answer: SampleSet = SampleSet.from_serializable(json.loads(text))  # type: ignore[no-untyped-call]
        assert answer.first.sample == {"one": 1, "other": 0}
        assert answer.first.energy == pytest.approx(-1.5)
        assert int(answer.record.num_occurrences.sum()) == READS
        assert answer.info["qpu"]
        jobs = driver.jobs(lease)
        if jobs is not None:
            assert [job["state"] for job in jobs] == ["Completed"]
            assert jobs[0]["id"]

    def test_a_wrong_parameter_is_refused(self, driver: Qpu, lease: str) -> None:
        job = qpu.from_environment(qpu.environment([(driver, lease)]))
        assert job is not None
        with pytest.raises(InputError, match="no_such_parameter"):
            job.solve(problem(), {"no_such_parameter": 1})
