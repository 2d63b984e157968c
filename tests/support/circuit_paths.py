"""The paths by which circuits reach a QPU; each returns counts in a circuit's own order."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from qiskit import QuantumCircuit, qasm3, transpile
from qiskit.circuit import Parameter
from qiskit.result import Result as Results

from sf_quantum.errors import InputError
from sf_quantum.files import JSON
from sf_quantum.protocol.calibrations import CalibrationData
from sf_quantum.protocol.tasks import Task
from sf_quantum.protocol.values import counters
from sf_quantum.qpu.running import JobSide
from sf_quantum.qpu.sdks.qiskit import QpuBackend
from tests.support.circuits import LEAST_P, Case, p_value, probabilities

Counts = Mapping[str, int]
#: counts of each circuit, or why it is refused
Path = Callable[[Sequence[QuantumCircuit]], list[Counts | str]]
SHOTS, SEED = 2000, 7
# how far the angles of a circuit's double are from its own
_APART = 0.37


@dataclass(frozen=True)
class Paths:
    """Paths over the QPU's own interface.

    :param qpu: the job's side of a QPU without noise
    """

    qpu: JobSide

    def named(self) -> dict[str, Path]:
        """Return those that take any circuit."""
        return {
            "list of texts": self.texts,
            "program with values": self.program,
            "list that differs in angles": self.alike,
            "backend.run": self.run,
            "backend.run after transpile": self.transpiled,
            "backend.run of a pair that differs in angles": self.pairs,
            "pass readout": self.readout,
        }

    def texts(self, circuits: Sequence[QuantumCircuit]) -> list[Counts | str]:
        """Send a list of texts, as Qiskit writes them."""
        return _each(
            circuits,
            lambda one: one,
            lambda given: self.sent([*map(qasm3.dumps, given)]),
        )

    def program(self, circuits: Sequence[QuantumCircuit]) -> list[Counts | str]:
        """Send each circuit with its angles as values of parameters."""

        def sent(given: Sequence[QuantumCircuit]) -> list[Counts]:
            found: list[Counts] = []
            for one in given:
                free, values = _free(one)
                other = {name: value + _APART for name, value in values.items()}
                content: JSON = {
                    "program": qasm3.dumps(free),
                    "values": [{**other}, {**values}],
                }
                found.append(self.sent(content, 2)[1])
            return found

        return _each(circuits, lambda one: one, sent)

    def alike(self, circuits: Sequence[QuantumCircuit]) -> list[Counts | str]:
        """Send a list in which each circuit has a double with other angles, a template."""

        def sent(given: Sequence[QuantumCircuit]) -> list[Counts]:
            both = [qasm3.dumps(one) for each in given for one in (_double(each), each)]
            return self.sent([*both])[1::2]

        return _each(circuits, lambda one: one, sent)

    def run(self, circuits: Sequence[QuantumCircuit]) -> list[Counts | str]:
        """Run them as they are."""
        return _each(
            circuits, lambda one: one, lambda given: run(QpuBackend(self.qpu), given)
        )

    def transpiled(self, circuits: Sequence[QuantumCircuit]) -> list[Counts | str]:
        """Run them after Qiskit has compiled them for the QPU."""
        backend = QpuBackend(self.qpu)
        return _each(
            circuits,
            lambda one: transpile(
                one, backend, optimization_level=1, seed_transpiler=SEED
            ),
            lambda given: run(backend, given),
        )

    def pairs(self, circuits: Sequence[QuantumCircuit]) -> list[Counts | str]:
        """Run each with a double that has other angles, so that they are one program."""

        def sent(given: Sequence[QuantumCircuit]) -> list[Counts]:
            backend = QpuBackend(self.qpu)
            return [run(backend, [_double(one), one])[1] for one in given]

        return _each(circuits, lambda one: one, sent)

    def readout(self, circuits: Sequence[QuantumCircuit]) -> list[Counts | str]:
        """Run them with read-out mitigation, which has nothing to mitigate."""
        backend = QpuBackend(self.qpu)
        values = {"readout_false_one": 0.0, "readout_false_zero": 0.0}
        calibration = CalibrationData(values=values)
        backend.described = replace(backend.described, calibration=calibration)
        return _each(
            circuits,
            lambda one: one,
            lambda given: run(backend, given, mitigation="readout"),
        )

    def sent(self, content: JSON, circuits: int | None = None) -> list[Counts]:
        """Send a job, and return the counts of its circuits."""
        tag = f"sfq-{abs(hash(json.dumps(content))):x}"
        parameters = {"num_reads": SHOTS, "seed": SEED}
        task = Task(tag, "circuit", json.dumps(content), parameters)
        outcome = self.qpu.run_job(task)
        assert outcome.result is not None, outcome.failure
        count = circuits or (len(content) if isinstance(content, list) else 1)
        return [*counters("q", outcome.result.text, count)]


def iqm_api(url: str) -> Path:
    """Return the path of Qiskit on IQM, to a service that is one QPU."""
    from iqm.qiskit_iqm import IQMProvider

    def path(circuits: Sequence[QuantumCircuit]) -> list[Counts | str]:
        backend = IQMProvider(url, token="any").get_backend()

        def sent(given: Sequence[QuantumCircuit]) -> list[Counts]:
            counts = backend.run([*given], shots=SHOTS).result().get_counts()
            return [
                {word.replace(" ", ""): count for word, count in one.items()}
                for one in (counts if isinstance(counts, list) else [counts])
            ]

        return _each(
            circuits,
            lambda one: transpile(
                one, backend, optimization_level=1, seed_transpiler=SEED
            ),
            sent,
        )

    return path


def run(
    backend: QpuBackend, circuits: Sequence[QuantumCircuit], **options: str
) -> list[Counts]:
    """Run circuits on a backend of Qiskit; the words are of all bits, without blanks."""
    job = backend.run([*circuits], shots=SHOTS, seed_simulator=SEED, **options)
    return _words(circuits, job.result())


def _words(circuits: Sequence[QuantumCircuit], result: Results) -> list[Counts]:
    """Read counts as words of all bits, the last first and without blanks."""
    return [
        {
            f"{int(word, 16):0{circuit.num_clbits}b}": count
            for word, count in one.data.counts.items()
        }
        for circuit, one in zip(circuits, result.results, strict=True)
    ]


def differences(cases: Sequence[Case], path: Path) -> Iterator[tuple[Case, str]]:
    """Yield the cases whose counts are not what their circuits give, or that are refused."""
    for case, found in zip(cases, path([case.circuit for case in cases]), strict=True):
        if isinstance(found, str):
            yield case, f"refused: {found}"
        elif (p := p_value(found, probabilities(case.circuit))) < LEAST_P:
            yield case, f"p = {p:.1e}"


def _each(
    circuits: Sequence[QuantumCircuit],
    made: Callable[[QuantumCircuit], QuantumCircuit],
    sent: Callable[[Sequence[QuantumCircuit]], list[Counts]],
) -> list[Counts | str]:
    """Send circuits together, or one at a time if some are refused."""
    given = [made(one) for one in circuits]
    try:
        return [*sent(given)]
    except (InputError, qasm3.QASM3ExporterError):
        pass
    found: list[Counts | str] = []
    for one in given:
        try:
            found += sent([one])
        except (InputError, qasm3.QASM3ExporterError) as error:
            found.append(str(error))
    return found


def _free(circuit: QuantumCircuit) -> tuple[QuantumCircuit, dict[str, float]]:
    """Replace the angles of standard gates by parameters."""
    free = circuit.copy()
    values: dict[str, float] = {}
    for place, one in enumerate(circuit.data):
        if one.params and one.is_standard_gate():
            names = [Parameter(f"v{len(values) + n}") for n in range(len(one.params))]
            values.update(
                (name.name, float(angle))
                for name, angle in zip(names, one.params, strict=True)
            )
            operation = one.operation.to_mutable()
            operation.params = names
            free.data[place] = one.replace(operation=operation)
    return free, values


def _double(circuit: QuantumCircuit) -> QuantumCircuit:
    """Return the circuit with other angles."""
    free, values = _free(circuit)
    double: QuantumCircuit = free.assign_parameters(
        {name: value + _APART for name, value in values.items()}
    )
    return double
