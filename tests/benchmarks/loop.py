"""What the QPU service adds to each circuit of a variational loop.

    python -m tests.benchmarks.loop [--bqms] [--circuits 1000] [--tenants 50] [--batch 100]

``sfq serve`` runs as a process of its own, on loopback TCP, with its state on disk; its
emulated device of technology ``superconducting`` waits for nothing, so that a job takes as
long as its simulation. One tenant holds the only vQPU and submits circuits of 4 qubits one
after the other, each when it has the counts of the one before, while the others wait for
the vQPU. The time from ``run()`` to the counts, less the device's own time as the counts'
``info`` tells it, is what the service adds. Beside it, in turns, so that other work on the machine
hits both: as many requests of the same client to a FastAPI application that does nothing, and
batches of as many circuits with angles of their own: as texts, as a program with sets of values,
and by the backend for Qiskit, which writes them as one; and single circuits by that backend. With
``--bqms``, the device is an annealer, and there are BQMs of 12 variables instead, and lists of them.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import threading
import time
from contextlib import ExitStack, suppress
from itertools import combinations
from pathlib import Path
from statistics import median, quantiles
from uuid import uuid4

from fastapi import FastAPI
from qiskit import QuantumCircuit

from sf_quantum.errors import QuantumError
from sf_quantum.files import JSON
from sf_quantum.net.transport import Client
from sf_quantum.protocol.tasks import Kind, Outcome, Task
from sf_quantum.qpu.sdks.qiskit import QpuBackend
from sf_quantum.qpu.sfq.service_qpu import SfqQpu
from sf_quantum.samplers.problem import document
from tests.benchmarks.submission import bare, started

SHOTS = 100
VARIABLES = 12
QUBITS = 12
MS = 1e3


def circuit(theta: float) -> str:
    """A layer of an ansatz for an Ising chain of 4 spins."""
    pairs = [(0, 1), (1, 2), (2, 3)]
    lines = [f"rx({theta}) q[{qubit}];" for qubit in range(4)]
    lines += [f"cz q[{a}], q[{b}];" for a, b in pairs]
    lines += [f"rx({theta / 2}) q[{qubit}];" for qubit in range(4)]
    head = ["OPENQASM 3.0;", 'include "stdgates.inc";', "qubit[4] q;", "bit[4] c;"]
    return "\n".join([*head, *lines, "c = measure q;"])


def bqm(number: int) -> JSON:
    """A spin glass of 12 variables, all of which interact."""
    draws = random.Random(number)
    pairs = [*combinations(range(VARIABLES), 2)]
    couplings = [draws.choice((-1.0, 1.0)) for _ in pairs]
    linear = [0.0] * VARIABLES
    return {**document([*range(VARIABLES)], linear, pairs, couplings, "SPIN")}


def site(folder: Path, technology: str) -> list[str]:
    """Write a service's configuration; return its command."""
    config: dict[str, JSON] = {
        "state": str(folder / "state"),
        "device": {"technology": technology, "qubits": QUBITS, "time_scale": 0.0},
        "vqpus": 1,
    }
    (folder / "service.yml").write_text(json.dumps(config))
    sfq = str(Path(sys.executable).parent / "sfq")
    return [sfq, "serve", "--config", str(folder / "service.yml")]


def empty() -> None:
    """Run the application for comparison."""
    app = FastAPI()

    @app.get("/")
    async def nothing() -> dict[str, str]:
        return {}

    bare(app)


def ansatz(angle: float) -> QuantumCircuit:
    """The same as an object of Qiskit."""
    one = QuantumCircuit(4, 4)
    for qubit in range(4):
        one.rx(angle, qubit)
    for pair in ((0, 1), (1, 2), (2, 3)):
        one.cz(*pair)
    for qubit in range(4):
        one.rx(angle / 2, qubit)
    one.measure(range(4), range(4))
    return one


class Loop:
    """Runs jobs of one tenant; each tells the seconds that it took, and the device's own."""

    def __init__(self, qpu: SfqQpu, batch: int) -> None:
        self._qpu = qpu
        self._batch = batch
        self._backend: QpuBackend | None = None

    def single(self, number: int) -> tuple[float, float]:
        """Run a circuit."""
        return self._run(number, circuit(number / 100))

    def texts(self, number: int) -> tuple[float, float]:
        """Run a batch of texts."""
        return self._run(number, [circuit(angle) for angle in self._angles(number)])

    def program(self, number: int) -> tuple[float, float]:
        """Run a program with as many sets of values."""
        head, text = "qubit[4] q;", circuit(0.5)
        text = text.replace("rx(0.5)", "rx(a)").replace("rx(0.25)", "rx(a / 2)")
        text = text.replace(head, f"input float a;\n{head}")
        values: list[JSON] = [{"a": angle} for angle in self._angles(number)]
        return self._run(number, {"program": text, "values": values})

    def qiskit(self, number: int) -> tuple[float, float]:
        """Run a batch by the backend for Qiskit."""
        return self._by_qiskit(number, [*map(ansatz, self._angles(number))])

    def single_qiskit(self, number: int) -> tuple[float, float]:
        """Run a circuit by the backend for Qiskit."""
        return self._by_qiskit(number, ansatz(number / 100 + 0.001))

    def bqm(self, number: int) -> tuple[float, float]:
        """Sample a BQM."""
        return self._run(number, bqm(number), "problem")

    def bqms(self, number: int) -> tuple[float, float]:
        """Sample a list of BQMs."""
        first = self._batch * (number + 1)
        listed = [bqm(first + one) for one in range(self._batch)]
        return self._run(number, listed, "problem")

    def _by_qiskit(
        self, number: int, circuits: QuantumCircuit | list[QuantumCircuit]
    ) -> tuple[float, float]:
        self._backend = self._backend or self._qpu.backend()
        begin = time.perf_counter()
        job = self._backend.run(circuits, shots=SHOTS, seed_simulator=number)
        job.result()
        took = time.perf_counter() - begin
        known = self._qpu.find(job.job_id())
        return took, self._own(
            self._qpu.result(str(known), Task("", "circuit", "", {}))
        )

    def _angles(self, number: int) -> list[float]:
        return [number + (one + 0.5) / self._batch for one in range(self._batch)]

    def _run(
        self, number: int, content: JSON, kind: Kind = "circuit"
    ) -> tuple[float, float]:
        parameters = {"num_reads": SHOTS, "seed": number}
        begin = time.perf_counter()
        task = Task(f"loop-{uuid4()}", kind, json.dumps(content), parameters)
        outcome = self._qpu.run_job(task)
        return time.perf_counter() - begin, self._own(outcome)

    @staticmethod
    def _own(outcome: Outcome) -> float:
        if outcome.result is None or outcome.seconds is None:
            raise RuntimeError(str(outcome.failure))
        return outcome.seconds


def shown(name: str, seconds: list[float]) -> str:
    p99 = quantiles(seconds, n=100)[98]
    return f"{name}: {MS * median(seconds):.2f} ms median, {MS * p99:.2f} ms p99"


def wait_for_lease(url: str, number: int, stop: threading.Event) -> None:
    client = Client(url, {})
    while not stop.is_set():
        with suppress(QuantumError):
            client.request(
                "POST",
                "/v1/leases",
                {"job": f"tenant {number}", "wait": 60},
                timeout_seconds=70,
            )


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--circuits", type=int, default=1000)
    parser.add_argument("--tenants", type=int, default=50)
    parser.add_argument("--batch", type=int, default=100, help="circuits in a batch")
    parser.add_argument("--batches", type=int, default=20, help="of each kind")
    parser.add_argument("--bqms", action="store_true", help="BQMs, not circuits")
    parser.add_argument("--empty", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.empty:
        empty()
        return
    technology = "annealer" if args.bqms else "superconducting"
    with ExitStack() as stack:
        folder = Path(
            stack.enter_context(
                tempfile.TemporaryDirectory(prefix="sfq-", dir="/var/tmp")
            )
        )
        url = stack.enter_context(started(site(folder, technology)))[0]
        module = [sys.executable, "-m", "tests.benchmarks.loop", "--empty"]
        idle = Client(stack.enter_context(started(module))[0], {})
        qpu = SfqQpu("qpu", url)
        lease = qpu.acquire()
        stop = threading.Event()
        for number in range(args.tenants):
            threading.Thread(
                target=wait_for_lease, args=(url, number, stop), daemon=True
            ).start()
        time.sleep(3)
        loop = Loop(SfqQpu("qpu", url, lease=lease), args.batch)
        if args.bqms:
            singles, batches = [loop.bqm], [loop.bqms]
        else:
            singles = [loop.single, loop.single_qiskit]
            batches = [loop.texts, loop.program, loop.qiskit]
        kinds = (*singles, *batches)
        added: dict[str, list[float]] = {kind.__name__: [] for kind in kinds}
        own: dict[str, list[float]] = {kind.__name__: [] for kind in kinds}
        nothing: list[float] = []
        for number in range(-args.circuits // 20, args.circuits):
            # batches in between, so that other work on the machine hits all alike
            due = batches if number % (args.circuits // args.batches) == 0 else []
            for kind in (*singles, *due):
                took, seconds = kind(abs(number))
                if number >= 0:
                    added[kind.__name__].append(took - seconds)
                    own[kind.__name__].append(seconds)
            begin = time.perf_counter()
            idle.request("GET", "/")
            nothing.append(time.perf_counter() - begin)
        for name in added:
            print(shown(f"{name}: added by the service", added[name]))
            print(shown(f"{name}: the device's own time", own[name]))
            both = [sum(each) for each in zip(added[name], own[name], strict=True)]
            print(shown(f"{name}: both", both))
        print(shown("a request that does nothing", nothing))
        stop.set()


if __name__ == "__main__":
    main()
