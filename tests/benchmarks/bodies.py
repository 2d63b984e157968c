"""What adversarial bodies cost the service, in CPU time and memory per byte.

    python -m tests.benchmarks.bodies [--sizes 16000,64000,250000,1000000,2000000,8000000]
        [--routes problem,circuit,...] [--minutes 0]

Each family of bodies (tests/support/adversarial.py) is sent to the service, which runs in this
process, in several sizes. A row has the CPU time of this process and those that it started,
the CPU time of the thread of the event loop, the largest growth of this process's memory,
and the status. It ends with 1 if a figure is above its bound, or a status is 5xx. With
MINUTES, the families are sent again and again in random sizes, and only rows above half of
their bound are printed.
"""

from __future__ import annotations

import argparse
import gc
import os
import random
import resource
import secrets
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from sf_quantum.errors import InputError
from sf_quantum.service.device.emulator.device import EmulatedDevice
from sf_quantum.service.dialects.large_bodies import PROCESS_BYTES
from sf_quantum.service.http.guard import Limits
from sf_quantum.service.http.tokens import read_tokens
from tests.support import dialects
from tests.support.adversarial import ROUTES, TOKENS, Family, Route
from tests.support.service import RunningService, running_service
from tests.support.waiting import until

SIZES = (16_000, 64_000, 250_000, 1_000_000, 2_000_000, 8_000_000)
TITLES = "route|family|bytes|cpu s|us/byte|loop s|memory MB|status"
# What any body may cost: CPU seconds, and per byte; a process that starts to read a large
# one, and imports what it needs, takes more. And bytes of memory, and per byte. Pulser's and
# Qiskit's parsers are slower, and have limits of their own, which the reference states.
CPU_SECONDS, CPU_PER_BYTE, PROCESS_SECONDS = 0.5, 5e-6, 5.0
SLOW_SECONDS = {
    "circuit": 75.0,
    "iqm": 75.0,
    "sequence": 45.0,
    "warden": 45.0,
    "photonic": 45.0,
}
MEMORY_BYTES, MEMORY_PER_BYTE = 100e6, 120.0
# Of a compressed body, per byte of the largest one after decompression.
CPU_PER_HELD_BYTE, MEMORY_PER_HELD_BYTE = 20e-9, 2.0
# Of the event loop, for any body: others wait as long.
LOOP_SECONDS = 0.25
# Of the event loop for each second until the answer, since its tasks run meanwhile: they take
# 0.3 % of a core of an idle service.
IDLE_SHARE = 0.005
KEY = b'"idempotency_key": "%b"'


@dataclass(frozen=True)
class Cost:
    """What one body has cost."""

    route: str
    family: str
    bytes: int
    cpu_seconds: float
    loop_seconds: float
    memory_bytes: float
    status: int
    wall_seconds: float = 0.0

    @property
    def share(self) -> float:
        """The largest of its figures, relative to its bound."""
        cpu = CPU_SECONDS + CPU_PER_BYTE * self.bytes
        cpu += PROCESS_SECONDS * (self.bytes > PROCESS_BYTES)
        memory = MEMORY_BYTES + MEMORY_PER_BYTE * self.bytes
        # a compressed body is charged for what it holds, up to the limit of any body
        if self.route == "deflated":
            cpu += CPU_PER_HELD_BYTE * Limits().body_bytes
            memory += MEMORY_PER_HELD_BYTE * Limits().body_bytes
        return max(
            self.cpu_seconds / max(cpu, SLOW_SECONDS.get(self.route, 0.0)),
            self.loop_seconds / (LOOP_SECONDS + IDLE_SHARE * self.wall_seconds),
            self.memory_bytes / memory,
        )

    @property
    def too_much(self) -> bool:
        """Whether it is above its bound, or was answered with 5xx."""
        # 503: the machine was too busy for a check, see the load
        return self.share > 1 or (self.status >= 500 and self.status != 503)

    def __str__(self) -> str:
        each = 1e6 * self.cpu_seconds / self.bytes
        figures = f"{self.cpu_seconds:.3f}|{each:.2f}|{self.loop_seconds:.3f}"
        what = f"{self.route}|{self.family}|{self.bytes}"
        return f"{what}|{figures}|{self.memory_bytes / 1e6:.1f}|{self.status}"


@dataclass
class Meter:
    """Measures this process and those that it has started."""

    service: RunningService | None = None
    _children: dict[int, float] = field(default_factory=dict)

    def cpu(self) -> float:
        """Return the CPU seconds so far."""
        own = sum(
            sum(resource.getrusage(who)[:2])
            for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
        )
        for pid in _descendants(os.getpid()):
            with suppress(psutil.Error):
                times = psutil.Process(pid).cpu_times()
                own += times.user + times.system
        return own

    def loop(self) -> float:
        """Return the CPU seconds of the event loop's thread so far."""
        if self.service is None or self.service.queue._loop is None:
            return 0.0
        told = Future[float]()
        self.service.queue._loop.call_soon_threadsafe(
            lambda: told.set_result(time.thread_time())
        )
        return told.result()

    def peak(self) -> float:
        """Return the largest memory since :meth:`reset`, in bytes."""
        lines = Path("/proc/self/status").read_text().splitlines()
        (peak,) = (line for line in lines if line.startswith("VmHWM:"))
        return float(peak.split()[1]) * 1024

    def reset(self) -> float:
        """Begin to measure the memory; return it."""
        with suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")
        return float(psutil.Process().memory_info().rss)


def _descendants(pid: int) -> Iterator[int]:
    """Yield the running descendants of a process, without a look at all others as psutil."""
    with suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in map(int, (task / "children").read_text().split()):
                yield child
                yield from _descendants(child)


def sent(meter: Meter, service: RunningService, name: str, family: str, n: int) -> Cost:
    """Send one body, and measure it."""
    route = ROUTES[name]
    body = route.families[family](n)
    # each is a job of its own
    body = body.replace(b'"idempotency_key": "k"', KEY % secrets.token_hex(8).encode())
    headers = {"Content-Type": "application/json", **route.headers}
    lease = service.acquire() if route.path in ("/v1/jobs", "/jobs") else None
    if lease:
        headers |= {"X-SFQ-Lease": lease, "X-Warden-Session": lease}
    before, loop, cpu = meter.reset(), meter.loop(), meter.cpu()
    began = time.monotonic()
    answer = service.ask("POST", route.path, body, headers=headers)
    cost = Cost(
        name,
        family,
        len(body),
        meter.cpu() - cpu,
        meter.loop() - loop,
        meter.peak() - before,
        answer.status,
        time.monotonic() - began,
    )
    if lease:
        service.ask("DELETE", f"/v1/leases/{lease}")
    return cost


def token_costs(sizes: Sequence[int]) -> Iterator[Cost]:
    """Measure the reader of the tokens file."""
    meter = Meter()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tokens.yml"
        path.touch(0o600)
        for family, make in TOKENS.items():
            for size in sizes:
                yield _read(meter, path, family, make, size)


def _read(meter: Meter, path: Path, family: str, make: Family, size: int) -> Cost:
    body, status = make(size), 200
    path.write_bytes(body)
    before, cpu = meter.reset(), meter.cpu()
    try:
        read_tokens(path)
    except InputError:
        status = 422
    taken = meter.cpu() - cpu
    return Cost("tokens", family, len(body), taken, 0.0, meter.peak() - before, status)


@contextmanager
def measured(route: Route) -> Iterator[tuple[Meter, RunningService]]:
    """Run a service with the device of a route, on which a job runs for ever.

    So no other job is computed, which is not what a body costs.
    """
    qubits = 5000 if route.technology == "annealer" else 20
    device = EmulatedDevice(technology=route.technology, qubits=qubits, time_scale=1e9)
    with running_service(device, vqpus=10) as service:
        first = dialects.body("/v1/jobs", route.technology, {})
        if isinstance(first, dict):
            lease = service.acquire()
            answer = service.ask("POST", "/v1/jobs", first, lease=lease)
            assert answer.status == 201, answer.json()
            until(lambda: bool(device.threads), "the first job is on the device")
        # as sfq serve does: a collection of a test's objects is not what a body costs
        gc.collect()
        gc.freeze()
        try:
            yield Meter(service), service
        finally:
            gc.unfreeze()


def costs(names: Sequence[str], sizes: Sequence[int]) -> Iterator[Cost]:
    """Measure each family in each size, the small first; a first request is not measured."""
    for name in names:
        if name == "tokens":
            # PyYAML takes 30 us per byte, and the file is an admin's
            yield from token_costs([size for size in sizes if size <= SIZES[1]])
            continue
        with measured(ROUTES[name]) as (meter, service):
            sent(meter, service, name, next(iter(ROUTES[name].families)), 100)
            for family in ROUTES[name].families:
                for size in sizes:
                    yield sent(meter, service, name, family, size)


def endless(names: Sequence[str], minutes: float, seed: int) -> Iterator[Cost]:
    """Measure families in random order and sizes for some time."""
    draws, end = random.Random(seed), time.monotonic() + 60 * minutes
    while time.monotonic() < end:
        name = draws.choice(names)
        route = ROUTES[name]
        with measured(route) as (meter, service):
            sent(meter, service, name, next(iter(route.families)), 100)
            for _ in range(20):
                family = draws.choice([*route.families])
                size = int(SIZES[0] * (SIZES[-1] / SIZES[0]) ** draws.random())
                yield sent(meter, service, name, family, size)
                if time.monotonic() > end:
                    return


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the rows.

    :returns: 1 if a body was too costly, or was answered with 5xx
    """
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", default=",".join(map(str, SIZES)))
    parser.add_argument("--routes", default=",".join([*ROUTES, "tokens"]))
    parser.add_argument("--minutes", type=float, default=0.0)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args(arguments)
    names, sizes = args.routes.split(","), [*map(int, args.sizes.split(","))]
    print(TITLES, flush=True)
    number, wrong, worst = 0, 0, 0.0
    if args.minutes:
        each = endless([n for n in names if n in ROUTES], args.minutes, args.seed)
    else:
        each = costs(names, sizes)
    for cost in each:
        number, worst = number + 1, max(worst, cost.share)
        wrong += cost.too_much
        if not args.minutes or cost.share > 0.5 or cost.too_much:
            mark = "  TOO MUCH" if cost.too_much else ""
            print(f"{cost}{mark}", flush=True)
    load = os.getloadavg()[0]
    print(f"{number} bodies, {wrong} above their bounds, the worst at {worst:.0%}")
    print(f"load of the machine in the end: {load:.1f}")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
