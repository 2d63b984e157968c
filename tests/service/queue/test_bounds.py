"""What the jobs of a lease may take: its QPU seconds, their shots and their qubits."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from sf_quantum.files import JSON
from sf_quantum.protocol.descriptions import Description
from sf_quantum.protocol.tasks import JobParameters
from sf_quantum.service.device.emulator.device import EmulatedDevice
from sf_quantum.service.device.interface import Cost, Device
from sf_quantum.service.device.vendor.sizes import checked, operands, qubits
from sf_quantum.service.domain.errors import Refused
from sf_quantum.service.domain.jobs import (
    Identity,
    Kind,
    LeaseRequest,
    Size,
    Submission,
)
from sf_quantum.service.domain.settings import ServiceSettings
from sf_quantum.service.queue.job_limits import check_sizes
from sf_quantum.service.queue.jobs.worker import Worker
from tests.support.service import (
    RunningService,
    example_bqm,
    running_queue,
    running_service,
)
from tests.support.waiting import until, until_async

# of which two qubits are used
BELL = """OPENQASM 3.0;
include "stdgates.inc";
qubit[5] q;
bit[2] c;
h q[0];
cx q[0], q[1];
c[0] = measure q[0];
c[1] = measure q[1];
"""


def acquired(service: RunningService, **bounds: JSON) -> str:
    answer = service.ask("POST", "/v1/leases", {"job": "test", **bounds})
    assert answer.status == 201, answer.json()
    return str(answer.json()["id"])


def submitted(
    service: RunningService, lease: str, key: str, shots: int = 10, **content: JSON
) -> tuple[int, dict[str, JSON]]:
    body: dict[str, JSON] = {
        "parameters": {"num_reads": shots},
        "idempotency_key": key,
        **(content or {"problem": example_bqm()}),
    }
    answer = service.ask("POST", "/v1/jobs", body, lease=lease)
    return answer.status, answer.json()


def test_a_job_beyond_the_bounds_of_its_lease_is_refused(tmp_path: Path) -> None:
    state = tmp_path / "state.sqlite"
    with running_service(state=state) as service:
        lease = acquired(service, max_shots=9, max_qubits=2)
        status, told = submitted(service, lease, "shots")
        assert (status, told["field"]) == (422, "parameters.num_reads")
        assert told["detail"] == "10 shots, the lease is for at most 9 per job"
        status, told = submitted(service, lease, "qubits", shots=9)
        assert (status, told["field"]) == (422, "problem")
        assert told["detail"] == "3 variables, the lease is for at most 2"
    # the next service knows them as well
    with running_service(state=state) as service:
        shown = service.ask("GET", f"/v1/leases/{lease}").json()
        assert (shown["max_shots"], shown["max_qubits"]) == (9, 2)
        assert shown["max_qpu_seconds"] is None
        assert submitted(service, lease, "qubits", shots=9)[0] == 422


@pytest.mark.parametrize(("most", "expected"), [(2, 201), (1, 422)])
def test_the_qubits_that_a_circuit_uses_count(most: int, expected: int) -> None:
    pytest.importorskip("qiskit_aer")
    device = EmulatedDevice(
        technology="superconducting", topology="complete", time_scale=0, qubits=5
    )
    with running_service(device) as service:
        lease = acquired(service, max_qubits=most)
        assert submitted(service, lease, "bell", circuit=BELL)[0] == expected


@pytest.mark.parametrize(
    ("statements", "expected"),
    [
        ("cx q[0], q[3]; x q[3];", 2),
        ("c = measure q;", 5),
        ("x q[0:2];", 5),
        ("for int i in [0:4] { x q[i]; }", 5),
    ],
)
@pytest.mark.parametrize("register", ["qubit[5] q;", "qreg q[5];"])
def test_qubits_that_are_not_named_one_by_one_count(
    register: str, statements: str, expected: int
) -> None:
    assert operands(f"{register}\n{statements}\n") == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("/* */ qubit[9] q;", 9),
        ("qubit[2] a; qubit[7] b;", 9),
        ("qubit a; qubit b;\nqubit\n[7] // [1]\nc;", 9),
        ("qreg a [2]; qreg b[7];", 9),
        ("x $0; cx $00, $8;", 2),
        ('include "/*"; qubit[9] q; include "*/";', 9),
        ("// qubit[9] q;\nqubit[2] r;", 2),
        # what the patterns may miss
        ("const int n = 9; qubit[n] q;", None),
        ("qubit[0x9] q;", None),
        ("qubit[2] a; qubit[3 + 4] b;", None),
        ("pragma /*\nqubit[9] q;\npragma */", None),
        ("@note /*\nqubit[9] q;\n@note */", None),
        ("def f(qubit q) { x q; } qubit[9] q;", None),
        # it may be in another language
        ("", None),
    ],
)
def test_qubits_of_a_vendors_circuit_are_all_counted_or_none(
    text: str, expected: int | None
) -> None:
    assert qubits(text) == expected
    for native in ((), ("r", "cz")):
        told = Description("x", 40, ("circuit",), native_gates=native)
        # one text of which the number is not certain leaves all of them uncertain
        size = checked("circuit", [text, "qubit[3] q; measure q;"], told)
        assert (size.qubits is None) is (expected is None)
        assert bool(size.qubits_problem) is (expected is None)


@pytest.mark.parametrize("seed", range(50))
def test_generated_declarations_are_all_counted(seed: int) -> None:
    random, total, parts = Random(seed), 0, ["OPENQASM 3.0;"]
    for number in range(random.randrange(1, 6)):
        width, name = random.randrange(1, 9), f"q{number}"
        forms = [f"qubit[{width}] {name};", f"qreg {name}[{width}];"]
        forms += [f"qubit [ {width} ]\t{name} ;", f"qubit/*[9]*/[{width}] {name};"]
        parts.append(random.choice([*forms, f"qubit {name};"] if width == 1 else forms))
        parts.append(random.choice(["", "// qubit[50] z;\n", "/* qreg y[5]; */", "\n"]))
        total += width
    text = random.choice(" \n").join(parts)
    assert qubits(text) == total
    # a parser of the language finds as many
    program = pytest.importorskip("openqasm3").parse(text)
    declared = [one for one in program.statements if hasattr(one, "qubit")]
    sizes = [one.size.value if one.size else 1 for one in declared]
    assert sum(sizes) == total


async def test_a_circuit_of_unknown_size_is_refused_under_a_bound(
    tmp_path: Path,
) -> None:
    async with running_queue(tmp_path, EmulatedDevice(), None) as queue:
        who = Identity("ann", admin=False)
        bound = await queue.leases.acquire(who, LeaseRequest(max_qubits=4))
    check_sizes(bound, "circuit", 1, Size(qubits=4))
    check_sizes(replace(bound, max_qubits=None), "circuit", 1, Size())
    told = Description("x", 40, ("circuit", "sequence"))
    refused: dict[Kind, tuple[str, str]] = {
        "circuit": ("qubit[n] q;", "not certain: declare them as in"),
        "sequence": ("{}", "the number of qubits is not certain"),
    }
    for kind, (text, words) in refused.items():
        with pytest.raises(Refused, match=words):
            check_sizes(bound, kind, 1, checked(kind, text, told))


async def test_a_circuit_that_uses_no_qubit_runs_under_a_bound(
    tmp_path: Path,
) -> None:
    told = Description("x", 40, ("circuit",), native_gates=("r", "cz"))
    unused = checked("circuit", "OPENQASM 3.0; qubit[9] q; bit[2] c;", told)
    assert (unused.qubits, unused.qubits_problem) == (0, "")
    async with running_queue(tmp_path, EmulatedDevice(), None) as queue:
        who = Identity("ann", admin=False)
        bound = await queue.leases.acquire(who, LeaseRequest(max_qubits=4))
    check_sizes(bound, "circuit", 1, unused)


class _Uncounted(EmulatedDevice):
    """Checks jobs as a site's own device does that overrides nothing for it."""

    def check(self, kind: Kind, content: JSON, parameters: JobParameters) -> Size:
        return Device.check(self, kind, content, parameters)


def test_a_device_that_does_not_count_qubits_says_so() -> None:
    device = _Uncounted(technology="superconducting", time_scale=0, qubits=5)
    with running_service(device) as service:
        lease = acquired(service, max_qubits=4)
        status, told = submitted(service, lease, "bell", circuit=BELL)
        assert (status, told["field"]) == (422, "circuit")
        assert told["detail"] == (
            "the lease is for at most 4 qubits, and the device does not report how many "
            "qubits a circuit uses"
        )
        # the service itself counts the variables of a problem
        assert submitted(service, lease, "problem")[0] == 201


def test_a_job_for_which_too_few_seconds_are_left_is_refused() -> None:
    with running_service() as service:
        cost = service.queue.device.cost({"num_reads": 10}).qpu_seconds
        lease = acquired(service, max_qpu_seconds=2.5 * cost)
        for number, key in enumerate(("first", "second")):
            assert submitted(service, lease, key)[0] == 201
            service.until(lease, "Completed", number)
        status, told = submitted(service, lease, "third")
        assert (status, told["field"]) == (422, "X-SFQ-Lease")
        assert told["detail"] == (
            f"the job takes {cost:.3g} s on the QPU, the lease has {cost / 2:.3g} s left "
            f"of {2.5 * cost:g} s"
        )
        # the same job again takes nothing
        assert submitted(service, lease, "second")[0] in (200, 201)
        assert service.ask("GET", f"/v1/leases/{lease}").json()["held"]


def test_a_lease_ends_when_its_seconds_turn_out_to_be_spent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def cost(*_: object) -> Cost:
        return Cost(1e-6)

    with running_service() as service:
        # a vendor's device may take longer than expected as well
        monkeypatch.setattr(service.queue.admission, "cost", cost)
        lease = acquired(service, max_qpu_seconds=1e-4)
        assert submitted(service, lease, "first")[0] == 201

        def ended() -> JSON:
            return service.ask("GET", f"/v1/leases/{lease}").json()["reason"]

        assert until(ended) == "its 0.0001 QPU seconds are spent"
        # what has run is not lost
        assert service.until(lease, "Completed")
        status, told = submitted(service, lease, "second")
        assert status == 403
        expected = "the lease has ended: its 0.0001 QPU seconds are spent"
        assert told["detail"] == expected


async def test_jobs_that_come_at_once_share_the_seconds_that_are_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Worker, "may_start", False)
    who, device = Identity("ann", admin=False), EmulatedDevice()
    most = 2.5 * device.cost({"num_reads": 10}).qpu_seconds
    async with running_queue(tmp_path, device) as queue:
        lease = await queue.leases.acquire(who, LeaseRequest(max_qpu_seconds=most))
        asked = (
            Submission("problem", example_bqm(), {"num_reads": 10}, str(key))
            for key in range(8)
        )
        submitting = (queue.submit(who, lease.id, one) for one in asked)
        ended = await asyncio.gather(*submitting, return_exceptions=True)
        refused = [one for one in ended if isinstance(one, BaseException)]
        assert len(refused) == 6
        assert all("the lease has" in str(one) for one in refused)


async def test_a_moved_job_keeps_to_the_bounds_of_its_new_lease(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Worker, "may_start", False)
    who, device = Identity("ann", admin=False), EmulatedDevice()
    settings = ServiceSettings(vqpus=2)
    cost = device.cost({"num_reads": 10}).qpu_seconds
    asked = Submission("problem", example_bqm(), {"num_reads": 10}, "key")
    async with running_queue(tmp_path, device, settings) as queue:
        first = await queue.leases.acquire(who, LeaseRequest())
        job, _ = await queue.submit(who, first.id, asked)
        bounds: list[tuple[LeaseRequest, str]] = [
            (LeaseRequest(max_shots=9), "10 shots"),
            (LeaseRequest(max_qubits=2), "3 variables"),
            (LeaseRequest(max_qpu_seconds=cost / 2), "the lease has"),
        ]
        for bound, why in bounds:
            small = await queue.leases.acquire(who, bound)
            with pytest.raises(Refused, match=why):
                await queue.submit(who, small.id, asked)
            assert queue.find(who, job.id).lease == first.id
            await queue.leases.release(who, small.id)
        fitting = LeaseRequest(max_shots=10, max_qubits=3, max_qpu_seconds=1.5 * cost)
        large = await queue.leases.acquire(who, fitting)
        moved, new = await queue.submit(who, large.id, asked)
        assert (moved.id, moved.lease, new) == (job.id, large.id, False)
        # it counts there
        with pytest.raises(Refused, match="the lease has"):
            await queue.submit(who, large.id, replace(asked, key="other"))


async def test_a_restored_lease_that_has_overspent_ends_at_start(
    tmp_path: Path,
) -> None:
    who = Identity("ann", admin=False)
    two = ServiceSettings(vqpus=2)
    async with running_queue(tmp_path, EmulatedDevice(time_scale=0), two) as queue:
        lease, other = [
            await queue.leases.acquire(who, LeaseRequest(max_qpu_seconds=most))
            for most in (1.0, 1e9)
        ]
        # a job took more than was modelled, and the service died before the end of the
        # lease was on disk
        spend = "UPDATE leases SET spent_seconds = 2.0 WHERE id = ?"
        queue.store.change(lambda db: db.execute(spend, (lease.id,))).result()
    async with running_queue(tmp_path, EmulatedDevice(time_scale=0), two) as queue:
        assert [one.id for one in queue.leases.held] == [lease.id, other.id]
        await until_async(lambda: [one.id for one in queue.leases.held] == [other.id])
        ended = queue.leases.find(who, lease.id)
        assert ended.reason == "its 1 QPU seconds are spent"


@pytest.mark.parametrize(
    "bound", [{"max_qpu_seconds": 0}, {"max_shots": 0}, {"max_qubits": 1.5}]
)
def test_a_bound_that_cannot_be_is_refused(bound: dict[str, JSON]) -> None:
    with running_service() as service:
        answer = service.ask("POST", "/v1/leases", bound)
        assert answer.status == 422
        assert answer.json()["field"] == next(iter(bound))
