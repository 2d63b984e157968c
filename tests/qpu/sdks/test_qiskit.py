"""A QPU as a backend of Qiskit, in front of a service."""

from __future__ import annotations

import json
from collections.abc import Iterator
from math import inf, nan, pi
from typing import ClassVar

import numpy as np
import pytest
from dimod import BinaryQuadraticModel
from qiskit import ClassicalRegister, QuantumCircuit, QuantumRegister, transpile
from qiskit.circuit import Clbit, Instruction, Parameter, Qubit
from qiskit.primitives import BackendEstimatorV2, BackendSamplerV2
from qiskit.providers import JobStatus
from qiskit.quantum_info import SparsePauliOp

from sf_quantum.errors import InputError, QpuError
from sf_quantum.protocol.descriptions import Description, Topology
from sf_quantum.protocol.tasks import Outcome, Progress, Result, Task
from sf_quantum.qpu.circuit_runner import JobRunner
from sf_quantum.qpu.sdks.qiskit import QpuBackend, program, target
from sf_quantum.qpu.sfq.service_qpu import SfqQpu
from sf_quantum.samplers.qaoa import QaoaSampler
from sf_quantum.service.device.emulator.device import EmulatedDevice
from sf_quantum.service.device.emulator.settings import Faults
from tests.support.service import RunningService, running_service
from tests.support.waiting import SECONDS


@pytest.fixture(scope="module")
def service() -> Iterator[RunningService]:
    device = EmulatedDevice(technology="superconducting", qubits=6, time_scale=0.0)
    with running_service(device) as running:
        yield running


@pytest.fixture
def backend(service: RunningService) -> Iterator[QpuBackend]:
    lease = service.acquire()
    yield SfqQpu("q", service.url, lease=lease).backend()
    service.ask("DELETE", f"/v1/leases/{lease}")


def bell() -> QuantumCircuit:
    circuit = QuantumCircuit(2)
    circuit.h(0)
    circuit.cx(0, 1)
    circuit.measure_all()
    return circuit


def test_counts_and_the_bits_of_each_shot(backend: QpuBackend) -> None:
    circuit = transpile(bell(), backend)
    job = backend.run(circuit, shots=100, memory=True, seed_simulator=1)
    result = job.result(SECONDS)
    counts = result.get_counts()
    assert set(counts) == {"00", "11"}
    assert sum(counts.values()) == 100
    memory = result.get_memory()
    assert {bits: memory.count(bits) for bits in counts} == counts
    assert job.status() is JobStatus.DONE
    again = backend.run(circuit, shots=100, seed_simulator=1).result(SECONDS)
    assert again.get_counts() == counts


def test_seeds_make_runs_of_qaoa_reproducible(
    service: RunningService,
) -> None:
    lease = service.acquire()
    bqm = BinaryQuadraticModel({0: 0.5}, {(0, 1): 1.0, (1, 2): 1.0}, "SPIN")
    sampler = QaoaSampler(runner=JobRunner(SfqQpu("q", service.url, lease=lease)))
    one, same, other = (
        sampler.sample(bqm, seed=seed, depth=1, evaluations=4, num_reads=50)
        for seed in (5, 5, 6)
    )
    assert one == same
    assert one.info["angles"] == same.info["angles"] != other.info["angles"]
    jobs = service.queue.store.jobs.latest(lease=lease)
    seeds = [job.parameters["seed"] for job in jobs]
    assert len(jobs) == 15
    assert seeds[:5] == seeds[5:10]
    assert len({*seeds}) == 10
    service.ask("DELETE", f"/v1/leases/{lease}")


def test_the_bits_of_several_registers_are_in_qiskits_order(
    backend: QpuBackend,
) -> None:
    circuit = QuantumCircuit(
        QuantumRegister(3), ClassicalRegister(1, "a"), ClassicalRegister(2, "b")
    )
    circuit.x(0)
    circuit.x(2)
    circuit.measure([0, 1, 2], [0, 1, 2])
    result = backend.run(circuit, shots=10).result(SECONDS)
    assert result.get_counts() == {"10 1": 10}


def test_bits_are_in_the_order_of_the_circuit(backend: QpuBackend) -> None:
    """Whether registers share them, have them in another order, or lack some."""
    for names in (((0, 2), (1, 3)), ((1, 3), (0, 1)), ((2, 3),), ()):
        bits = [Clbit() for _ in range(3)]
        circuit = QuantumCircuit(QuantumRegister(3, "c"))
        circuit.add_bits(bits)
        for name, (first, end) in zip("ab", names, strict=False):
            circuit.add_register(ClassicalRegister(bits=bits[first:end], name=name))
        circuit.x(0)
        circuit.measure([0, 1, 2], bits)
        counts = backend.run([circuit, circuit], shots=5).result(SECONDS).results
        assert [one.data.counts for one in counts] == [{"0x1": 5}] * 2
    bits = [Clbit() for _ in range(4)]
    circuit = QuantumCircuit(QuantumRegister(2))
    circuit.add_bits(bits)
    circuit.add_register(ClassicalRegister(bits=bits[2:], name="b"))
    circuit.add_register(ClassicalRegister(bits=bits[1:2], name="a"))
    circuit.x(0)
    circuit.measure(0, 2)
    with circuit.if_test((circuit.cregs[0], 1)):
        circuit.x(1)
    circuit.measure(1, 0)
    (one,) = backend.run(circuit, shots=5).result(SECONDS).results
    assert one.data.counts == {hex(0b0101): 5}
    circuit.add_register(ClassicalRegister(bits=bits[:2], name="shared"))
    with pytest.raises(InputError, match="its registers share bits, so that its cond"):
        backend.run(circuit, shots=5)


def test_the_primitives_of_qiskit_run_on_it(backend: QpuBackend) -> None:
    circuit = transpile(bell(), backend)
    sampled = BackendSamplerV2(backend=backend).run([circuit] * 2, shots=50).result()
    for one in sampled:
        assert set(one.data.meas.get_counts()) == {"00", "11"}
    pairs = SparsePauliOp(["ZZ", "XX", "YY"])
    state = transpile(bell().remove_final_measurements(inplace=False), backend)
    values = BackendEstimatorV2(backend=backend).run([(state, [*pairs])]).result()
    assert values[0].data.evs.tolist() == [1.0, 1.0, -1.0]


def test_many_circuits_are_one_job(
    service: RunningService, backend: QpuBackend
) -> None:
    before = len(service.queue.store.jobs.latest())
    circuits = []
    for number in range(4):
        circuit = QuantumCircuit(2)
        for qubit in range(2):
            if number >> qubit & 1:
                circuit.x(qubit)
        circuit.measure_all()
        circuits.append(circuit)
    given = [*circuits]
    job = backend.run(given, shots=5)
    given.clear()  # the job has its own list
    result = job.result(SECONDS)
    assert result.get_counts() == [{f"{number:02b}": 5} for number in range(4)]
    assert len(service.queue.store.jobs.latest()) == before + 1


def turned(angle: float, other: float = 0.0) -> QuantumCircuit:
    circuit = QuantumCircuit(2)
    circuit.rx(angle, 0)
    circuit.rx(angle, 1)
    circuit.rz(other, 1)
    circuit.rz(0.5, 1)
    circuit.measure_all()
    return circuit


def test_circuits_that_differ_in_angles_are_sent_as_one(
    service: RunningService, backend: QpuBackend
) -> None:
    circuits = [turned(n * pi, 1.0 - n) for n in range(3)]
    result = backend.run(circuits, shots=5).result(SECONDS)
    assert result.get_counts() == [{"00": 5}, {"11": 5}, {"00": 5}]
    sent = json.loads(
        service.queue.store.jobs.payload(service.queue.store.jobs.latest()[-1].number)
    )
    # equal angles are one parameter, and those that stay the same are none
    assert [one.keys() for one in sent["values"]] == [{"angle0", "angle1"}] * 3
    assert "rz(0.5) q[1];" in sent["program"]
    # once more with native gates, one of which the text defines
    native = transpile(circuits, backend, optimization_level=0)
    result = backend.run(native, shots=5).result(SECONDS)
    assert result.get_counts() == [{"00": 5}, {"11": 5}, {"00": 5}]


def test_which_circuits_differ_in_angles_alone() -> None:
    one = turned(1.0)
    assert program([one]) is None
    same = program([one, one])
    assert same is not None
    assert same["values"] == [{}, {}]
    other, named, wider, free, opaque = (one.copy() for _ in range(5))
    other.x(0)
    named.add_register(ClassicalRegister(1, "more"))
    wider.add_register(QuantumRegister(1, "more"))
    free.rx(Parameter("free"), 0)
    opaque.append(bell().to_instruction(), [0, 1], [0, 1])
    swapped = turned(1.0)
    swapped.data[0], swapped.data[2] = swapped.data[2], swapped.data[0]
    for different in (other, named, wider, swapped):
        assert program([one, different]) is None
        assert program([different, one]) is None
    loose = [
        QuantumCircuit([Qubit() for _ in range(n)], [Clbit() for _ in range(3 - n)])
        for n in (1, 2)
    ]
    assert program(loose) is None
    for unfit in (free, opaque):
        assert program([unfit, unfit]) is None


def test_parameters_without_values_are_named(backend: QpuBackend) -> None:
    circuit = QuantumCircuit(1)
    circuit.rx(Parameter("theta"), 0)
    circuit.measure_all()
    wanted = (
        "circuit 1: parameter theta has no value; bind the parameters: "
        "circuit.assign_parameters({'theta': 0.5})"
    )
    with pytest.raises(InputError) as caught:
        backend.run([bell(), circuit])
    assert str(caught.value) == wanted


def test_what_the_qpu_refuses_is_said(backend: QpuBackend) -> None:
    circuit = QuantumCircuit(7)
    circuit.measure_all()
    job = backend.run(circuit, shots=1)
    with pytest.raises(InputError, match="7 qubits"):
        job.result(SECONDS)
    assert job.status() is JobStatus.ERROR
    with pytest.raises(InputError, match="unknown option 'shot'"):
        backend.run(bell(), shot=1)
    for name, value in (("shots", "x"), ("shots", 0), ("mitigation", 5)):
        with pytest.raises(InputError, match=f"{name}: {value!r}: expected"):
            backend.run(bell(), **{name: value})
    opaque = QuantumCircuit(1)
    opaque.append(Instruction("mine", 1, 0, []), [0])
    with pytest.raises(InputError, match=f"circuit '{opaque.name}': mine: it cannot"):
        backend.run(opaque)


@pytest.mark.parametrize("angle", [inf, nan])
def test_angles_are_finite(backend: QpuBackend, angle: float) -> None:
    for circuits in ([turned(angle)], [turned(0.0), turned(angle)]):
        with pytest.raises(InputError, match=f"rx has the angle {angle}"):
            backend.run(circuits)


class Answering:
    """The job side of a QPU with this result."""

    name = "q"
    finds_by_tag: ClassVar[bool] = False

    def __init__(self, text: str) -> None:
        self._text = text

    def describe(self) -> Description:
        return Description("superconducting", 2, ("circuit",))

    def run_job(self, task: Task) -> Outcome:
        return Outcome(Result(self._text))

    def submit(self, task: Task) -> str:
        raise NotImplementedError

    def find(self, tag: str) -> str | None:
        raise NotImplementedError

    def poll(self, job_id: str) -> Progress:
        raise NotImplementedError

    def result(self, job_id: str, task: Task) -> Outcome:
        raise NotImplementedError

    def cancel(self, job_id: str) -> None:
        raise NotImplementedError


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"counters": [{"00": 1}]}',
        '{"counters": [{"00": 1}, {"02": 1}]}',
    ],
)
def test_an_answer_without_all_circuits_counts_is_refused(text: str) -> None:
    qpu = Answering(text)
    job = QpuBackend(qpu).run([bell(), bell()], shots=1)
    with pytest.raises(QpuError, match="'q': its answer has no counts of bit strings"):
        job.result(SECONDS)
    with pytest.raises(QpuError, match="cannot look for its job"):
        job.cancel()
    with pytest.raises(QpuError, match="'q': its answer has no counts of bit strings"):
        JobRunner(Answering(text.replace("00", "02"))).reads(bell(), np.array([]), 1)


def test_a_job_that_fails_or_is_cancelled_has_no_result() -> None:
    device = EmulatedDevice(technology="superconducting", qubits=6, time_scale=1e6)
    with running_service(device) as service:
        job = SfqQpu("q", service.url, lease=service.acquire()).backend().run(bell())
        assert job.status() is JobStatus.RUNNING
        job.cancel()  # its submission may not have been answered
        with pytest.raises(QpuError, match=r"job .*: cancelled"):
            job.result(SECONDS)
        assert job.status() is JobStatus.CANCELLED
    faults = Faults(fail=1.0)
    device = EmulatedDevice(
        technology="superconducting", qubits=6, time_scale=0.0, faults=faults
    )
    with running_service(device) as service:
        job = SfqQpu("q", service.url, lease=service.acquire()).backend().run(bell())
        with pytest.raises(QpuError, match="the QPU failed"):
            job.result(SECONDS)


def test_read_out_mitigation_brings_counts_nearer_to_the_truth() -> None:
    """Of 6 qubits that are all flipped, most errors are those of their read-out."""
    device = EmulatedDevice(
        technology="superconducting", qubits=6, time_scale=0.0, noise=3.0, seed=7
    )
    circuit = QuantumCircuit(6)
    circuit.x(range(6))
    circuit.measure_all()
    right = {}
    with running_service(device) as service:
        lease = service.acquire()
        backend = SfqQpu("q", service.url, lease=lease).backend()
        for mitigation in ("", "readout"):
            job = backend.run(
                circuit, shots=4000, seed_simulator=1, mitigation=mitigation
            )
            result = job.result(SECONDS)
            counts = result.get_counts()
            assert sum(counts.values()) == 4000
            right[mitigation] = counts["1" * 6]
            assert result.info["mitigation"] == [mitigation][: len(mitigation)]
    assert right[""] < 3300
    assert right["readout"] > 3600


def test_an_annealer_is_no_backend() -> None:
    with running_service() as service:
        qpu = SfqQpu("q", service.url, lease=service.acquire())
        with pytest.raises(InputError, match="takes no circuits, but: problem"):
            qpu.backend()


def test_a_lattice_is_transpiled_to() -> None:
    star = Topology("star", (5,), 5, ((0, 2), (1, 2), (2, 3), (2, 4)))
    described = Description(
        "superconducting", 5, ("circuit",), topology=star, native_gates=("prx", "cz")
    )
    circuit = QuantumCircuit(5)
    circuit.h(0)
    for qubit in range(1, 5):
        circuit.cx(0, qubit)
    circuit.measure_all()
    made = transpile(circuit, target=target(described), seed_transpiler=1)
    assert set(made.count_ops()) <= {"r", "cz", "measure", "barrier"}
    for step in made.data:
        if step.operation.name == "cz":
            pair = sorted(made.find_bit(qubit).index for qubit in step.qubits)
            assert tuple(pair) in star.couplers
