"""Compares circuits on each path with matrices and state vectors, and 40 kinds with Aer.

Each circuit is read by the emulated device, and what it would simulate compared exactly;
its counts are compared on one of the paths, in turn, by a chi-squared test.

    python -m tests.benchmarks.circuits [--circuits 1000] [--seed 1] [--page]
    python -m tests.benchmarks.circuits --kinds [--page]
    python -m tests.benchmarks.circuits --sdk pennylane|qrisp|cirq|zne [--circuits 30]

An SDK is run by the Python of an environment that has it, and this project with the extra
``circuits``. ``--page`` writes the table into the documentation.
"""

from __future__ import annotations

import argparse
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import chain, islice

from qiskit import QuantumCircuit, qasm2, qasm3
from qiskit.qasm2 import QASM2ExportError
from qiskit_aer import AerSimulator

from sf_quantum.errors import InputError
from sf_quantum.qpu.sfq.service_qpu import SfqQpu
from sf_quantum.service.device.emulator.circuits.batches import batch
from sf_quantum.service.device.emulator.device import EmulatedDevice
from tests.support.circuit_families import families
from tests.support.circuit_paths import SHOTS, Counts, Path, Paths, differences, iqm_api
from tests.support.circuits import (
    Case,
    defined_gates,
    hellinger,
    modified_gates,
    named_gates,
    probabilities,
    qiskit_gates,
    random_circuits,
)
from tests.support.folders import ROOT
from tests.support.service import RunningService, running_service

PAGE = ROOT / "docs" / "reference" / "figures.md"
EXACT = 1e-9
# circuits of a job
TOGETHER = 20
READ = "read by the device, exactly"


def main() -> None:
    """Print a table, or write it into the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--circuits", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kinds", action="store_true")
    parser.add_argument("--sdk", choices=("pennylane", "qrisp", "cirq", "zne"))
    parser.add_argument("--page", action="store_true", help=f"write into {PAGE.name}")
    given = parser.parse_args()
    if given.sdk:
        from tests.benchmarks import circuits_sdks

        print(circuits_sdks.compare(given.sdk, given.circuits, given.seed))
        return
    name, text = (
        ("kinds of circuits", kinds())
        if given.kinds
        else ("circuits", compare(given.circuits, given.seed))
    )
    print(text)
    if given.page:
        table = re.compile(
            rf"(?<=<!-- table of {name} -->\n\n).*?(?=\n\n<!-- end of the table -->)",
            re.DOTALL,
        )
        PAGE.write_text(table.sub(lambda _: text, PAGE.read_text()))


def cases(count: int, seed: int) -> list[Case]:
    """Return circuits of every kind."""
    named = chain(
        named_gates(3, seed),
        named_gates(2, seed),
        modified_gates(seed),
        qiskit_gates(seed),
    )
    made = [*named, *islice(defined_gates(seed), 60)]
    return [*made, *islice(random_circuits(seed), max(0, count - len(made)))][:count]


class Tally:
    """Counts circuits, refusals and differences of each path."""

    def __init__(self) -> None:
        self._compared: Counter[str] = Counter()
        self._refused: dict[str, Counter[str]] = {}
        self._different: Counter[str] = Counter()

    def add(self, path: str, case: Case, why: str | None) -> None:
        """Add a circuit, and what is said of it."""
        self._compared[path] += 1
        if why is None:
            return
        if why.startswith("refused: "):
            reasons = self._refused.setdefault(path, Counter())
            reasons[why.removeprefix("refused: ")] += 1
        else:
            self._different[path] += 1
            print(f"{path}: {case.name}: {why}", flush=True)

    def table(self) -> str:
        """Write a line for each path, and print the reasons of refusals."""
        lines = ["| path | circuits | refused | different |", "|---|---|---|---|"]
        for path, count in self._compared.items():
            refused = self._refused.get(path, Counter())
            for reason, times in refused.items():
                print(f"{path}: refused {times}: {reason}", flush=True)
            different = self._different[path]
            lines.append(f"| {path} | {count} | {refused.total()} | {different} |")
        return "\n".join(lines)


def compare(count: int, seed: int) -> str:
    """Compare circuits on all paths; return the table."""
    tally, began = Tally(), time.monotonic()
    made = cases(count, seed)
    for case in made:
        for text in case.texts or _texts(case.circuit):
            tally.add(READ, case, _distance(text, case.circuit))
    print(f"read after {time.monotonic() - began:.0f} s", flush=True)
    with _paths() as paths:
        for number, (name, (path, fits)) in enumerate(paths.items()):
            some = [case for case in made[number :: len(paths)] if fits(case.circuit)]
            for n in range(0, len(some), TOGETHER):
                part = some[n : n + TOGETHER]
                wrong = {id(case): why for case, why in differences(part, path)}
                for case in part:
                    tally.add(name, case, wrong.get(id(case)))
            print(f"{name} after {time.monotonic() - began:.0f} s", flush=True)
    return tally.table()


def _texts(circuit: QuantumCircuit) -> Iterator[str]:
    """Write a circuit in both versions of OpenQASM, if its bits are in their order."""
    if not _in_order(circuit):
        return
    yield qasm3.dumps(circuit)
    with suppress(QASM2ExportError):  # it has no words for the conditions
        yield qasm2.dumps(circuit)


def _in_order(circuit: QuantumCircuit) -> bool:
    return bool([bit for one in circuit.cregs for bit in one] == circuit.clbits)


def _static(circuit: QuantumCircuit) -> bool:
    return _in_order(circuit) and "if_else" not in circuit.count_ops()


def _small(circuit: QuantumCircuit) -> bool:
    return "if_else" not in circuit.count_ops() and circuit.num_qubits <= 5


def _any(_: QuantumCircuit) -> bool:
    return True


def _distance(text: str, circuit: QuantumCircuit) -> str | None:
    try:
        (group,) = batch(text).groups
    except InputError as error:
        return f"refused: {error}"
    (read,) = group.bound()
    found, wanted = probabilities(read), probabilities(circuit)
    words = found.keys() | wanted.keys()
    most = max(abs(found.get(word, 0) - wanted.get(word, 0)) for word in words)
    return None if most < EXACT else f"a probability is off by {most:.3g}"


Fitting = Callable[[QuantumCircuit], bool]


@contextmanager
def _paths() -> Iterator[dict[str, tuple[Path, Fitting]]]:
    """Start the services; yield the paths, and which circuits each one takes."""
    with running(10, "complete") as every, running(5, "square", tcp=True) as lattice:
        paths = Paths(SfqQpu("q", every.url, lease=every.acquire()))

        def native(circuits: Sequence[QuantumCircuit]) -> list[Counts | str]:
            # a lease from the start would have ended by now, since it was idle
            lease = lattice.acquire()
            found = Paths(SfqQpu("q", lattice.url, lease=lease)).transpiled(circuits)
            lattice.ask("DELETE", f"/v1/leases/{lease}")
            return found

        taken: dict[str, tuple[Path, Fitting]] = {
            name: (path, _any if name.startswith(("backend", "pass")) else _in_order)
            for name, path in paths.named().items()
        }
        taken["backend.run after transpile, on a lattice"] = native, _small
        try:
            taken["IQM's API, by Qiskit on IQM"] = iqm_api(lattice.url), _native
        except ImportError:
            print("iqm-client[qiskit] is not installed", flush=True)
        yield taken


def _native(circuit: QuantumCircuit) -> bool:
    return _small(circuit) and _static(circuit) and "reset" not in circuit.count_ops()


@contextmanager
def running(
    qubits: int, topology: str, *, tcp: bool = False
) -> Iterator[RunningService]:
    """Run a service without noise and delays."""
    device = EmulatedDevice(
        technology="superconducting",
        topology=topology,
        qubits=qubits,
        time_scale=0.0,
        noise=0.0,
    )
    with running_service(device, vqpus=2, tcp=tcp) as service:
        yield service


def kinds() -> str:
    """Compare the kinds of circuits with Aer; return the table."""
    lines = [
        "| circuit | qubits | OpenQASM 3 | OpenQASM 2 | Aer, two seeds |",
        "|---|---|---|---|---|",
    ]
    with running(20, "complete") as service:
        paths = Paths(SfqQpu("q", service.url, lease=service.acquire()))
        for name, circuit in families():
            one, other = (_aer(circuit, seed) for seed in (1, 2))
            found = [
                _measured(paths, dumps, circuit, one)
                for dumps in (qasm3.dumps, qasm2.dumps)
            ]
            between = f"{hellinger(one, other):.3f}"
            cells = [name, str(circuit.num_qubits), *found, between]
            lines.append(f"| {' | '.join(cells)} |")
            print(lines[-1], flush=True)
    return "\n".join(lines)


def _measured(
    paths: Paths,
    dumps: Callable[[QuantumCircuit], str],
    circuit: QuantumCircuit,
    reference: dict[str, int],
) -> str:
    try:
        (counts,) = paths.sent(dumps(circuit))
    except QASM2ExportError:
        return "-"
    except InputError as error:
        return str(error)
    return f"{hellinger(counts, reference):.3f}"


def _aer(circuit: QuantumCircuit, seed: int) -> dict[str, int]:
    """Return Aer's counts; decomposed, since it does not know all gates."""
    simulator = AerSimulator(method="statevector", max_parallel_threads=1)
    plain = circuit
    while unknown := _unknown(plain):
        plain = plain.decompose([*unknown])
    result = simulator.run(plain, shots=SHOTS, seed_simulator=seed).result()
    return {word.replace(" ", ""): n for word, n in result.get_counts().items()}


def _unknown(circuit: QuantumCircuit) -> Sequence[str]:
    known = {*AerSimulator().operation_names, "measure", "reset", "barrier", "if_else"}
    return [name for name in circuit.count_ops() if name not in known]


if __name__ == "__main__":
    main()
