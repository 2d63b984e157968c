"""How long the check of a vendor's result takes, and what the event loop notices of it.

    python -m tests.benchmarks.vendor_results [MEGABYTES]

Prints the CPU seconds of the check itself, and of the service's thread that waits for it,
which an event loop may notice; and the longest pause of an event loop whose
thread checks results as a device does, beside that while another program checks them: on a
busy machine, the latter is the machine's own.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

import numpy as np
from dimod import BinaryQuadraticModel, SampleSet

from sf_quantum.files import JSON
from sf_quantum.protocol.tasks import Kind, Outcome, Result, Task
from sf_quantum.service.device.processes.verification import verified
from sf_quantum.service.device.vendor.answer_checks import Passed, VendorAnswers
from sf_quantum.threads import in_thread

T = TypeVar("T")
REPEATS = 3
VARIABLES, BITS = 1000, 127


def samples(megabytes: float) -> tuple[Task, str]:
    """Make a problem of 1,000 variables and as many reads as have the size."""
    draws = np.random.default_rng(1)
    reads = int(megabytes * 1e6 / (VARIABLES / 32 * 12.5 + 25))
    bqm = BinaryQuadraticModel(dict.fromkeys(range(VARIABLES), -1.0), {}, "BINARY")
    for one, other in draws.integers(VARIABLES, size=(5 * VARIABLES, 2)).tolist():
        if one != other:
            bqm.add_quadratic(one, other, 1.5)
    values = draws.integers(2, size=(reads, VARIABLES), dtype=np.int8)
    made = SampleSet.from_samples_bqm(values, bqm)  # type: ignore[no-untyped-call]
    content = made.to_serializable()
    del content["info"]
    payload = json.dumps(bqm.to_serializable())
    return _task("problem", payload, reads), json.dumps(content)


def counts(megabytes: float) -> tuple[Task, str]:
    """Make a circuit of 127 bits, and a bit string for each shot."""
    draws = np.random.default_rng(1)
    shots = int(megabytes * 1e6 / (BITS + 7))
    words = draws.integers(2, size=(shots, BITS))
    counter = {"".join(map(str, word)): 1 for word in words.tolist()}
    content: JSON = {"counter": {**counter}}
    payload = json.dumps(f"OPENQASM 3.0;\nqubit[{BITS}] q;\nbit[{BITS}] c;\n")
    return _task("circuit", payload, shots), json.dumps(content)


def _task(kind: Kind, payload: str, shots: int) -> Task:
    return Task("sfq-1-1", kind, payload, {"num_reads": shots})


async def checked(task: Task, text: str) -> tuple[float, float, float]:
    """Check a result in a thread.

    :returns: its seconds, the CPU seconds of the thread, and the loop's longest pause
    """
    answers = VendorAnswers("one")

    def check() -> float:
        began = time.thread_time()
        outcome = answers.outcome(Outcome(Result(text)), "1", task, Passed(None))
        assert outcome.result is not None, outcome.failure
        return time.thread_time() - began

    began = time.monotonic()
    checking = in_thread(check)
    longest = await longest_pause(asyncio.wrap_future(checking))
    return time.monotonic() - began, checking.result(), longest


async def longest_pause(until: asyncio.Future[T]) -> float:
    """Return the longest pause of the event loop until something is done."""
    longest, last = 0.0, time.monotonic()
    while not until.done():
        await asyncio.sleep(0.001)
        now = time.monotonic()
        longest, last = max(longest, now - last), now
    until.result()
    return longest


async def elsewhere(task: Task, text: str) -> float:
    """Return the longest pause of the loop while another program checks the same."""
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump([task.kind, task.payload, text, task.shots], file)
        file.flush()
        command = [sys.executable, "-m", "tests.benchmarks.vendor_results", file.name]
        process = await asyncio.create_subprocess_exec(*command)
        done = asyncio.ensure_future(process.wait())
        return await longest_pause(done)


def rows(megabytes: float) -> Iterator[str]:
    for name, made in (("samples", samples), ("counts", counts)):
        task, text = made(megabytes)
        began = time.process_time()
        verified(task.kind, task.payload, text, task.shots)
        own = time.process_time() - began
        asyncio.run(checked(task, text))  # the process has started
        told = [asyncio.run(checked(task, text)) for _ in range(REPEATS)]
        seconds = statistics.median(one for one, _, _ in told)
        thread = statistics.median(one for _, one, _ in told)
        longest = max(pause for _, _, pause in told)
        other = max(asyncio.run(elsewhere(task, text)) for _ in range(REPEATS))
        size = len(text) / 1e6
        times = f"{own:6.2f} {thread:8.3f} {seconds:8.2f} {longest:8.3f} {other:10.3f}"
        yield f"{name:8} {size:6.1f} {times}"


def main() -> None:
    given = sys.argv[1] if len(sys.argv) > 1 else "20"
    if given.endswith(".json"):  # see elsewhere()
        verified(*json.loads(Path(given).read_text()))
        return
    print("result       MB  CPU s   thread  elapsed  longest pauses: here, elsewhere")
    for row in rows(float(given)):
        print(row, flush=True)


if __name__ == "__main__":
    main()
