"""What the QPU service adds to each circuit of a variational loop.

    python -m tests.benchmarks.loop [--circuits 1000] [--tenants 50]

``sfq serve`` runs as a process of its own, on loopback TCP, with its state on disk; its
emulated device of technology ``superconducting`` waits for nothing, so that a job takes as
long as its simulation. One tenant holds the only vQPU and submits circuits of 4 qubits one
after the other, each when it has the counts of the one before, while the others wait for
the vQPU. The time from ``run()`` to the counts, less the device's own time as the counts'
``info`` tells it, is what the service adds. Beside it, in turns, so that other work on the machine
hits both: as many requests of the same client to a FastAPI application that does nothing.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from statistics import median, quantiles

from fastapi import FastAPI

from sf_quantum.errors import QuantumError
from sf_quantum.files import JSON
from sf_quantum.net.transport import Client
from sf_quantum.qpu.jobs import Task
from sf_quantum.qpu.sfq import SfqQpu
from tests.benchmarks.submission import bare, started

SHOTS = 100
MS = 1e3


def circuit(theta: float) -> str:
    """A layer of an ansatz for an Ising chain of 4 spins."""
    pairs = [(0, 1), (1, 2), (2, 3)]
    lines = [f"rx({theta}) q[{qubit}];" for qubit in range(4)]
    lines += [f"cz q[{a}], q[{b}];" for a, b in pairs]
    lines += [f"rx({theta / 2}) q[{qubit}];" for qubit in range(4)]
    head = ["OPENQASM 3.0;", 'include "stdgates.inc";', "qubit[4] q;", "bit[4] c;"]
    return "\n".join([*head, *lines, "c = measure q;"])


def site(folder: Path) -> list[str]:
    """Write a service's configuration; return its command."""
    config: dict[str, JSON] = {
        "state": str(folder / "state"),
        "device": {"technology": "superconducting", "qubits": 8, "time_scale": 0.0},
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


def jobs(qpu: SfqQpu) -> Callable[[int], float]:
    """Run each circuit as a job; return the device's own time."""

    def run(number: int) -> float:
        text = json.dumps(circuit(number / 100))
        parameters = {"num_reads": SHOTS, "seed": number}
        outcome = qpu.run_job(Task(f"loop-{number}", "circuit", text, parameters))
        if outcome.result is None or outcome.seconds is None:
            raise RuntimeError(f"circuit {number}: {outcome.failure}")
        return outcome.seconds

    return run


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
    parser.add_argument("--empty", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.empty:
        empty()
        return
    with ExitStack() as stack:
        folder = Path(
            stack.enter_context(
                tempfile.TemporaryDirectory(prefix="sfq-", dir="/var/tmp")
            )
        )
        url = stack.enter_context(started(site(folder)))[0]
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
        run = jobs(SfqQpu("qpu", url, lease=lease))
        added, own, nothing = [], [], []
        for number in range(args.circuits):
            begin = time.perf_counter()
            seconds = run(number)
            took = time.perf_counter() - begin
            if number >= args.circuits // 20:
                added.append(took - seconds)
                own.append(seconds)
                begin = time.perf_counter()
                idle.request("GET", "/")
                nothing.append(time.perf_counter() - begin)
        print(shown("added by the service", added))
        print(shown("the device's own time", own))
        print(shown("a request that does nothing", nothing))
        stop.set()


if __name__ == "__main__":
    main()
