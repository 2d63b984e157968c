"""The contract tests of devices.

Tests that need no device run for every registered type, including a site's own types::

    pytest --pyargs sf_quantum.testing.devices -k TYPE

For the other tests, subclass :class:`DeviceContract`, with a device or a test double::

    class TestMine(DeviceContract):
        @pytest.fixture
        def make(self) -> Callable[[], Device]:
            return lambda: devices.load("mine").from_config({"url": ...})

        @pytest.fixture
        def make_lasting(self) -> Callable[[], Device]:
            return lambda: devices.load("mine").from_config({"url": ..., "slow": True})
"""

from __future__ import annotations

import errno
import inspect
import json
import math
import socket
import subprocess
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import TypeVar, cast, get_args

import pytest
from dimod import SampleSet

from sf_quantum.errors import InputError, QpuError
from sf_quantum.files import JSON
from sf_quantum.protocol.calibrations import CalibrationData
from sf_quantum.protocol.tasks import (
    Kind,
    NotAccepted,
    Outcome,
    State,
    Task,
    UnknownJob,
)
from sf_quantum.samplers.neutral_atom import NeutralAtomSampler
from sf_quantum.samplers.problem import FieldError, document
from sf_quantum.service import device as devices
from sf_quantum.service.device.interface import Device, DeviceJobs, Recovery
from sf_quantum.service.device.readings import Calibrations
from sf_quantum.service.domain.jobs import Size
from sf_quantum.testing.qpus import PHOTONIC, Lie, problem, sequence

T = TypeVar("T")
#: shots of each job: enough for any working device to find the optimum of two variables
SHOTS = 100
#: Time after which a test that waits for the device fails.
SECONDS = 150.0
#: Largest number of polls of a running job per second; more polls are a busy loop.
MOST_POLLS = 200
#: If polls wait for at least this time in seconds, a cancellation must end the wait.
WORTH_ENDING = 0.5
#: lies about a result that must be rejected
RESULTS: tuple[Lie, ...] = (
    *("kind", "variables", "more reads", "fewer reads", "not finite", "not JSON"),
)
#: maximum characters of a vendor's text, including additions by the device
MOST_CHARACTERS = 1000
#: seconds that a vendor may bill in addition to the elapsed time
SPARE_SECONDS = 2.0
#: number of attempts at a measurement, one of which must succeed
TRIES = 5
#: circuit that flips one of two qubits, with a gate that is native to some QPUs: every
#: error-free shot is 01, with the last bit first
CIRCUIT = """OPENQASM 3.0;
gate r(theta, phi) q { U(theta, phi - pi/2, pi/2 - phi) q; }
qubit[2] q;
bit[2] c;
r(pi, 0) q[0];
c[0] = measure q[0];
c[1] = measure q[1];
"""


@pytest.fixture(params=devices.names())
def kind(request: pytest.FixtureRequest) -> type[Device]:
    """Return each registered type."""
    return devices.load(str(request.param))


def test_it_is_a_device_that_can_be_made(kind: type[Device]) -> None:
    assert issubclass(kind, Device)
    assert not inspect.isabstract(kind)


def test_it_says_what_it_is(kind: type[Device]) -> None:
    assert (kind.__doc__ or "").strip()


def test_an_unknown_key_is_named(kind: type[Device]) -> None:
    with pytest.raises(InputError, match="no_such_key"):
        kind.from_config({"no_such_key": "x"})


class DeviceContract:
    """The contract of a device that is online; override the first two fixtures."""

    #: id of no job, in the format of the device's ids
    unknown_id = "no-such-job"

    @pytest.fixture
    def make(self) -> Callable[[], Device]:
        """Return a function that makes a device, always from the same configuration."""
        raise NotImplementedError

    @pytest.fixture
    def make_lasting(self) -> Callable[[], Device]:
        """Return a function that makes a device whose jobs run for minutes."""
        raise NotImplementedError

    def payload(self, kind: Kind, device: Device) -> str | None:
        """Make the payload of a job; return ``None`` if the kind cannot be tested.

        By default, payloads are a problem of two variables, a circuit of two qubits, an
        experiment with a photon in two modes and, if Pulser is installed, a sequence of two
        atoms.
        """
        match kind:
            case "photonic":
                return json.dumps(PHOTONIC)
            case "problem":
                return json.dumps(problem())
            case "circuit":
                return json.dumps(CIRCUIT)
        missing = NeutralAtomSampler.problem()
        return json.dumps(sequence(device.specs())) if missing is None else None

    @pytest.fixture
    def cut_off(self, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
        """Return a function that makes the device unreachable.

        By default, every new connection of this process is refused.
        """

        def refused(*_: JSON) -> None:
            raise ConnectionRefusedError(errno.ECONNREFUSED, "refused by the test")

        def cut() -> None:
            for call in ("connect", "connect_ex"):
                monkeypatch.setattr(socket.socket, call, refused)

        return cut

    @pytest.fixture
    def device(self, make: Callable[[], Device]) -> Iterator[Device]:
        """Make a device, and close it at the end."""
        with closing(make()) as device:
            yield refreshed(device)

    def tasks(self, device: Device) -> list[Task]:
        """Make a job of each kind that the device accepts and :meth:`payload` supports."""
        description = device.description
        shots = min(SHOTS, description.shots or SHOTS)
        payloads = {kind: self.payload(kind, device) for kind in description.kinds}
        tasks = [
            Task(new_tag(), kind, payload, {"num_reads": shots})
            for kind, payload in payloads.items()
            if payload is not None
        ]
        assert tasks, f"override payload(): there is none of {description.kinds}"
        return tasks

    # state

    def test_it_describes_itself(self, device: Device) -> None:
        description = device.description
        assert device.name
        assert description.technology
        assert description.kinds
        assert {*description.kinds} <= {*get_args(Kind)}
        assert description.qubits >= 0
        assert description.shots is None or description.shots >= 1
        assert all(qubit >= 0 for qubit in description.out_of_service)
        assert (
            description.timing is None
            or 0 <= description.timing.job_seconds(1) < math.inf
        )
        assert isinstance(description.calibration, CalibrationData | None)
        assert isinstance(json.loads(device.specs()), dict)
        if (topology := description.topology) is not None:
            couplers = [*topology.couplers]
            assert couplers == sorted({*couplers})
            assert all(0 <= low < high < topology.labels for low, high in couplers)
            used = {qubit for pair in couplers for qubit in pair}
            assert used.isdisjoint(description.out_of_service)

    def test_it_is_online(self, device: Device) -> None:
        status = device.status
        assert (status.online, status.reason) == (True, "")
        assert status.queue_length >= 0
        assert 0 <= status.eta_seconds < math.inf
        device.refresh()
        assert device.status.online

    def test_it_is_asked_how_it_is_if_that_can_change(self, device: Device) -> None:
        # refresh() is called only if there is an interval
        assert (device.refresh_seconds is None) == (
            type(device).refresh is Device.refresh
        )
        assert device.refresh_seconds is None or device.refresh_seconds > 0

    def test_what_is_known_is_told_without_blocking(
        self, make: Callable[[], Device], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with closing(make()) as device:
            for _ in ("before it was asked anything", "after it"):
                with no_waiting(monkeypatch):
                    assert "description" in read_properties(device, Device)
                    assert "depth" in read_properties(device.jobs, DeviceJobs)
                    assert "data" in read_properties(device.calibrations, Calibrations)
                    device.elapsed_seconds(device.cost({"num_reads": SHOTS}))
                refreshed(device)

    def test_its_calibrations_are_in_order(self, device: Device) -> None:
        calibrations = device.calibrations
        made, age = calibrations.made, calibrations.age_seconds
        assert (made is None) == (age is None)
        assert 0 <= calibrations.wear <= 1
        if (history := calibrations.history()) is not None:
            assert [*history.times] == sorted(history.times)
            assert [*history.renewals] == sorted(history.renewals)
            for values in history.values.values():
                assert len(values) == len(history.times)

    def test_the_same_configuration_is_the_same_device(
        self, make: Callable[[], Device], device: Device
    ) -> None:
        with closing(make()) as again:
            assert again.name == device.name
            assert again.identity == device.identity
            assert again.jobs.recovery is device.jobs.recovery
        assert device.jobs.depth >= 1

    # limits and costs of jobs

    def test_more_shots_never_cost_less(self, device: Device) -> None:
        sizes = [None, *(checked(device, task) for task in self.tasks(device))]
        for size in sizes:
            costs = [device.cost({"num_reads": 10**n}, size) for n in range(6)]
            seconds = [cost.qpu_seconds for cost in costs]
            assert seconds == sorted(seconds)
            for cost in costs:
                assert 0 <= cost.qpu_seconds < math.inf
                assert 0 <= cost.spread < math.inf
                assert 0 <= cost.compute_seconds < math.inf
                assert 0 <= device.elapsed_seconds(cost) < math.inf

    def test_a_job_that_does_not_fit_is_refused_by_its_field(
        self, device: Device
    ) -> None:
        description = device.description
        wrong = cast("Kind", "no-such-kind")
        kinds = [
            wrong,
            *(kind for kind in get_args(Kind) if kind not in description.kinds),
        ]
        for kind in kinds:
            for check in (device.check_parameters, _checking(device, "")):
                with pytest.raises(FieldError) as refused:
                    check(kind, {"num_reads": 1})
                assert refused.value.field == kind
        if description.shots is not None:
            for task in self.tasks(device):
                with pytest.raises(FieldError) as refused:
                    device.check_parameters(
                        task.kind, {"num_reads": description.shots + 1}
                    )
                assert refused.value.field == "parameters.num_reads"
        if description.qubits and "problem" in description.kinds:
            with pytest.raises(FieldError) as refused:
                _checking(device, variables(description.qubits + 1))("problem", {})
            assert refused.value.field.startswith("problem")
            checked(device, task_of(variables(description.qubits)))

    # jobs

    def test_each_kind_of_job_runs(self, device: Device) -> None:
        for task in self.tasks(device):
            size = checked(device, task)
            assert isinstance(size, Size)
            assert size.qubits != 0, "an unknown number of qubits is None, not 0"
            job_id = submitted(device, task)
            assert over(device, job_id, task) == "Completed"
            outcome = device.jobs.result(job_id, task)
            assert_completed(outcome, task)

    def test_as_many_jobs_as_it_takes(self, device: Device) -> None:
        task, *_ = self.tasks(device)
        tasks = [replace(task, tag=new_tag()) for _ in range(min(device.jobs.depth, 3))]
        jobs = {submitted(device, task): task for task in tasks}
        assert len(jobs) == len(tasks)
        for job_id, task in jobs.items():
            assert over(device, job_id, task) == "Completed"
            assert_completed(device.jobs.result(job_id, task), task)

    def test_a_poll_waits_for_the_job_or_its_cancellation(
        self, make_lasting: Callable[[], Device]
    ) -> None:
        with closing(make_lasting()) as device:
            task, *_ = self.tasks(refreshed(device))
            job_id = running(device, task)
            polls, began = 0, time.monotonic()
            # a slow machine polls less often
            while (seconds := time.monotonic() - began) < 1:
                assert device.jobs.poll(job_id, task).state == "Running"
                polls += 1
                assert polls <= MOST_POLLS, "poll() of a running job does not wait"
            device.jobs.cancel(job_id)
            assert over(device, job_id, task) == "Cancelled"
            pause = seconds / polls
            if pause < WORTH_ENDING:
                return
            # one success is enough, since the machine may be stalled for a while
            assert any(
                cancelled_poll(device, task) < pause / 2 for _ in range(TRIES)
            ), "cancel() does not end the wait of poll()"

    def test_a_cancelled_job_ends(self, make_lasting: Callable[[], Device]) -> None:
        with closing(make_lasting()) as device:
            task, *_ = self.tasks(refreshed(device))
            job_id = running(device, task)
            device.jobs.cancel(job_id)
            device.jobs.cancel(job_id)
            assert over(device, job_id, task) == "Cancelled"
            device.jobs.cancel(job_id)
            outcome = device.jobs.result(job_id, task)
            assert (outcome.result, outcome.failure) == (None, None)
            assert_times(outcome)

    def test_a_job_that_is_over_can_be_cancelled(self, device: Device) -> None:
        task, *_ = self.tasks(device)
        job_id = submitted(device, task)
        assert over(device, job_id, task) == "Completed"
        device.jobs.cancel(job_id)
        assert_completed(device.jobs.result(job_id, task), task)
        device.jobs.cancel(job_id)

    def test_a_job_that_it_does_not_know(self, device: Device) -> None:
        task, *_ = self.tasks(device)
        for ask in (device.jobs.poll, device.jobs.result):
            with pytest.raises(UnknownJob):
                ask(self.unknown_id, task)
        device.jobs.cancel(self.unknown_id)

    def test_a_submission_that_cannot_be_made_has_made_no_job(
        self, make: Callable[[], Device], device: Device, cut_off: Callable[[], None]
    ) -> None:
        task, *_ = self.tasks(device)
        with closing(make()) as unconnected:
            cut_off()
            # any other QpuError would mean that there may be a job; a device that does not
            # use this process's connections accepts the job
            with suppress(NotAccepted):
                unconnected.jobs.submit(task)

    def test_a_wrong_payload_is_refused(self, device: Device) -> None:
        for task in self.tasks(device):
            wrong = replace(task, payload=json.dumps({"no": "such"}))
            if task.kind == "problem":
                with pytest.raises(FieldError):
                    checked(device, wrong)
            # The device may reject the payload at submission, or when it runs the job.
            with suppress(InputError):
                job_id = submitted(device, wrong)
                assert over(device, job_id, wrong) == "Failed"
                outcome = device.jobs.result(job_id, wrong)
                assert outcome.failure
                assert outcome.result is None

    def test_a_job_outlives_the_service_as_its_recovery_says(
        self, make: Callable[[], Device], device: Device
    ) -> None:
        task, *_ = self.tasks(device)
        job_id = submitted(device, task)
        device.close()
        with closing(make()) as again:
            refreshed(again)
            if device.jobs.recovery in (Recovery.RERUN, Recovery.LOST):
                with pytest.raises(UnknownJob):
                    again.jobs.poll(job_id, task)
                return
            if device.jobs.recovery is Recovery.BY_TAG:
                assert again.jobs.find(task.tag) == job_id
                assert not again.jobs.duplicates(task.tag, job_id)
                assert [*again.jobs.duplicates(task.tag, "")] == [job_id]
            assert over(again, job_id, task) == "Completed"
            assert_completed(again.jobs.result(job_id, task), task)

    def test_a_tag_that_was_never_used(self, device: Device) -> None:
        assert device.jobs.find(new_tag()) is None

    def test_it_gives_everything_back(self, make_lasting: Callable[[], Device]) -> None:
        before = {*threading.enumerate()}
        device = refreshed(make_lasting())
        task, *_ = self.tasks(device)
        submitted(device, task)
        device.close()
        device.close()
        until(lambda: {*threading.enumerate()} <= before, "its threads end")


class VendorContract(DeviceContract):
    """The contract of a device whose jobs run at a vendor, which may give wrong answers.

    The device must check every answer of the vendor before using it.
    """

    @pytest.fixture
    def make_lying(self) -> Callable[[Lie], Device | None]:
        """Return a function that makes a device whose vendor lies.

        Override this fixture with a test double that lies. The function returns ``None`` if
        the vendor's API cannot express a lie.
        """
        raise NotImplementedError

    @pytest.mark.parametrize("lie", RESULTS)
    def test_a_result_that_is_not_one_of_its_job_is_none(
        self, make_lying: Callable[[Lie], Device | None], lie: Lie
    ) -> None:
        with lying(make_lying, lie) as device:
            for task in self.tasks(device):
                outcome = outcome_of(device, task)
                message = (
                    f"a result with a lie about {lie!r} is taken for one of its job"
                )
                assert outcome is None or outcome.result is None, message
                if outcome is not None:
                    assert_plain(outcome.failure)

    def test_energies_are_those_of_the_samples(
        self, make_lying: Callable[[Lie], Device | None]
    ) -> None:
        with lying(make_lying, "energies") as device:
            for task in self.tasks(device):
                if task.kind != "problem":
                    continue
                outcome = outcome_of(device, task)
                assert outcome is not None
                assert outcome.result is not None
                assert_completed(outcome, task)
                message = "info['energies_recomputed'] tells of other energies"
                assert "energies_recomputed" in outcome.result.info, message

    def test_one_id_for_two_jobs_fails_the_second(
        self, make_lying: Callable[[Lie], Device | None]
    ) -> None:
        with lying(make_lying, "one id") as device:
            task, *_ = self.tasks(device)
            job_id = submitted(device, task)
            with pytest.raises(InputError) as refused:
                submitted(device, replace(task, tag=new_tag()))
            assert_plain(str(refused.value))
            assert over(device, job_id, task) == "Completed"
            assert_completed(device.jobs.result(job_id, task), task)

    def test_another_jobs_answers_are_none_of_a_job(
        self, make_lying: Callable[[Lie], Device | None]
    ) -> None:
        with lying(make_lying, "other job") as device:
            task, *_ = self.tasks(device)
            first = outcome_of(device, task)
            assert first is not None
            assert_completed(first, task)
            again = replace(task, tag=new_tag())
            job_id = submitted(device, again)
            mistake = "the state or the result of another job is taken for a job's own"
            with pytest.raises(QpuError):
                assert device.jobs.poll(job_id, again) is None, mistake
            with pytest.raises(QpuError):
                assert device.jobs.result(job_id, again) is None, mistake

    def test_no_more_time_counts_than_has_passed(
        self, make_lying: Callable[[Lie], Device | None]
    ) -> None:
        with lying(make_lying, "times") as device:
            for task in self.tasks(device):
                began = time.monotonic()
                outcome = outcome_of(device, task)
                assert outcome is not None
                most = 1.02 * (time.monotonic() - began) + SPARE_SECONDS
                for seconds in (outcome.qpu_seconds, outcome.seconds):
                    assert seconds is None or 0 <= seconds <= most
                assert_completed(outcome, task)

    def test_texts_are_short_and_printable(
        self, make_lying: Callable[[Lie], Device | None]
    ) -> None:
        with lying(make_lying, "texts") as device:
            for task in self.tasks(device):
                outcome = outcome_of(device, task)
                assert outcome is not None
                assert outcome.result is None
                assert_plain(outcome.failure)

    def test_it_has_no_numbers_that_cannot_be(
        self, make_lying: Callable[[Lie], Device | None]
    ) -> None:
        if (made := make_lying("status")) is None:
            pytest.skip("the vendor has no words for a lie about itself")
        with closing(made) as device:
            for _ in range(3):
                device.refresh()
            status, description = device.status, device.description
            assert 0 <= status.eta_seconds < 1e12
            assert 0 <= status.queue_length < 1e12
            assert 0 <= description.qubits < 1e12
            for text in (status.reason, status.trouble, description.technology):
                assert len(text) <= MOST_CHARACTERS
                assert text.isprintable()
            assert (
                description.timing is None
                or 0 <= description.timing.job_seconds(100) < math.inf
            )
            text = json.dumps(
                description.calibration and description.calibration.to_json(),
                allow_nan=False,
                ensure_ascii=False,
            )
            assert text.isprintable()
            age = device.calibrations.age_seconds
            assert age is None or age >= 0
            assert device.price is None or 0 <= device.price < math.inf
            assert 0 <= device.cost({"num_reads": 100}).qpu_seconds < math.inf


# helpers of the tests


def new_tag() -> str:
    """Make the tag of one submission."""
    return f"contract-{uuid.uuid4()}"


def task_of(content: JSON) -> Task:
    """Make the task of a problem, with one shot."""
    return Task(new_tag(), "problem", json.dumps(content), {"num_reads": 1})


def variables(count: int) -> dict[str, JSON]:
    """Make a problem of some variables that do not interact."""
    return document([*range(count)], [-1.0] * count, [], [], "BINARY")


def refreshed(device: Device) -> Device:
    """Refresh a device until it is online, and return it."""

    def online() -> bool:
        device.refresh()
        return device.status.online

    until(online, f"{device.name} is online")
    return device


@contextmanager
def closing(device: Device) -> Iterator[Device]:
    """Close a device at the end of the block."""
    try:
        yield device
    finally:
        device.close()


def until(condition: Callable[[], bool], what: str) -> None:
    """Wait until a condition is true; fail the test if this takes too long."""
    end = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < end, f"not in {SECONDS:g} s: {what}"
        time.sleep(0.01)


def submitted(device: Device, task: Task) -> str:
    """Submit a job; repeat the submission as long as it was certainly not accepted."""
    job_ids: list[str] = []

    def accepted() -> bool:
        try:
            job_ids.append(device.jobs.submit(task))
        except NotAccepted:
            device.refresh()
        return bool(job_ids)

    until(accepted, "the job is accepted")
    (job_id,) = job_ids
    assert isinstance(job_id, str), f"a job's id is a text, not {job_id!r}"
    assert job_id
    return job_id


def running(device: Device, task: Task) -> str:
    """Submit a job to a device whose jobs last for minutes, and wait until it runs."""
    job_id = submitted(device, task)
    until(lambda: device.jobs.poll(job_id, task).state == "Running", "it runs")
    return job_id


def cancelled_poll(device: Device, task: Task) -> float:
    """Start a job that lasts for minutes, cancel it during a poll, and time the poll."""
    task = replace(task, tag=new_tag())
    job_id, begun = running(device, task), threading.Event()

    def poll() -> float:
        began = time.monotonic()
        begun.set()
        device.jobs.poll(job_id, task)
        return time.monotonic() - began

    with ThreadPoolExecutor(1) as pool:
        seconds = pool.submit(poll)
        begun.wait()
        time.sleep(0.02)  # after this time, the poll is probably waiting
        device.jobs.cancel(job_id)
        assert over(device, job_id, task) == "Cancelled"
        return seconds.result()


def over(device: Device, job_id: str, task: Task) -> State:
    """Wait until a job has ended, and return its last state."""
    states: list[State] = []

    def ended() -> bool:
        states.append(device.jobs.poll(job_id, task).state)
        assert states[-1] in get_args(State)
        return states[-1] not in ("Queued", "Running")

    until(ended, "the job is over")
    return states[-1]


def checked(device: Device, task: Task) -> Size:
    """Check a job like the queue at its submission."""
    return device.check(task.kind, json.loads(task.payload), task.parameters)


@contextmanager
def lying(make: Callable[[Lie], Device | None], lie: Lie) -> Iterator[Device]:
    """Make a device whose vendor lies about its jobs, and close it at the end.

    The test is skipped if the vendor's API cannot express this lie.
    """
    if (device := make(lie)) is None:
        pytest.skip(f"the vendor has no words for a lie about {lie!r}")
    with closing(device):
        yield refreshed(device)


def outcome_of(device: Device, task: Task) -> Outcome | None:
    """Run a job and return its outcome; ``None`` if the result cannot be read."""
    job_id = submitted(device, task)
    over(device, job_id, task)
    try:
        return device.jobs.result(job_id, task)
    except QpuError as error:
        assert_plain(str(error))
        return None


def assert_plain(text: str | None) -> None:
    """Check that a text is not empty, and is suitable for a log, a page or a terminal."""
    assert text, "no reason is told"
    assert len(text) <= MOST_CHARACTERS, f"{len(text)} characters"
    assert text.isprintable(), f"not printable: {text!a:.100}"


def assert_completed(outcome: Outcome, task: Task) -> None:
    """Check the result of a task that :meth:`DeviceContract.tasks` made."""
    assert outcome.failure is None
    assert outcome.result is not None
    assert_times(outcome)
    assert isinstance(outcome.calibration, CalibrationData | None)
    content = json.loads(outcome.result.text)
    assert (
        "info" not in content
    ), "info is a field of the result, not a part of its text"
    content = json.loads(outcome.result.whole)
    assert isinstance(content["info"], dict)
    if task.kind != "problem":
        counter = content["counter"]
        assert sum(counter.values()) == task.shots
        if task.kind == "photonic":
            assert {*counter} == {"|0,1>"}
            return
        assert {*map(len, counter)} == {2}
        assert task.kind == "sequence" or max(counter, key=counter.get) == "01"
        return
    samples: SampleSet = SampleSet.from_serializable(content)  # type: ignore[no-untyped-call]
    assert samples.first.sample == {"one": 1, "other": 0}
    assert samples.first.energy == pytest.approx(-1.5)
    assert int(samples.record.num_occurrences.sum()) == task.shots


def assert_times(outcome: Outcome) -> None:
    """Check that times are reported as valid numbers, or not at all."""
    for seconds in (outcome.qpu_seconds, outcome.seconds):
        assert seconds is None or 0 <= seconds < math.inf


def read_properties(part: T, base: Callable[..., T]) -> list[str]:
    """Read the properties of a base class, and return their names."""
    names = [name for name, _ in inspect.getmembers(base, _is_property)]
    for name in names:
        getattr(part, name)
    return names


def _is_property(member: property | None) -> bool:
    return isinstance(member, property)


def _checking(
    device: Device, content: JSON
) -> Callable[[Kind, Mapping[str, int | None]], Size]:
    return lambda kind, parameters: device.check(kind, content, parameters)


@contextmanager
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Fail if this thread uses the network, starts a process or sleeps."""
    mine = threading.get_ident()

    def refusing(name: str, call: Callable[..., T]) -> Callable[..., T]:
        def checked(*arguments: JSON, **options: JSON) -> T:
            assert threading.get_ident() != mine, f"{name} may block"
            return call(*arguments, **options)

        return checked

    with monkeypatch.context() as patch:
        for owner, name in [
            *((socket.socket, call) for call in ("connect", "send", "sendall", "recv")),
            *((socket, "getaddrinfo"), (subprocess.Popen, "__init__"), (time, "sleep")),
        ]:
            patch.setattr(owner, name, refusing(name, getattr(owner, name)))
        yield
