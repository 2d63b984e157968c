"""How often each sampler reads the optimum, and how long it takes: two tables of docs/reference/figures.md.

    python -m tests.benchmarks.samplers [--weights size] [--sizes 8,12,20,60,200]
        [--samplers exact,neal]

The problems are QUBOs of clusterings of the example's points (5,000 of them): k-means,
DBSCAN and single linkage with parameters drawn from seed 0 on, without clusterings that
would exceed the wanted number of candidates. `exact` proves each optimum. Every sampler
is run as `sfq solve` runs it, behind the presolve, 1,000 reads, seeds 1 to 3: the mean
share of optimal reads, and the median time without imports, with the CPU time of this
process in parentheses. `exact` searches for one
optimum only, since weights by size have thousands of optima. `dwave` is D-Wave's Ocean
on the annealer that `sfq serve` emulates, with 5000 qubits and control errors, but
without waiting for modelled times: the seconds are for embedding, emulation and
requests. Ocean searches for an embedding of the 200 candidates for up to 1000 s per
try.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path

import numpy as np
from dimod import BinaryQuadraticModel
from dimod.core.sampler import Sampler
from sklearn.datasets import make_blobs

from sf_quantum import samplers
from sf_quantum.clustering.consensus_qubo import PENALTIES, WEIGHTS, overlaps
from sf_quantum.clustering.kernels import Doubles
from sf_quantum.clustering.methods import METHODS, Ranges, apply, draw
from sf_quantum.clustering.result import Clustering, assess
from sf_quantum.errors import InputError
from sf_quantum.qpu.environment import from_environment, job_environment
from sf_quantum.qpu.vendors.dwave import DWaveQpu
from sf_quantum.samplers.presolve import LeasedPresolve, Presolve
from tests.support import qubos
from tests.support.service_process import QpuService

POINTS = 5000
RANGES = Ranges(clusters=(2, 10))
SEEDS = (1, 2, 3)
# Relative to the energy: selections of the same total size differ by the rounding of their
# weights, and all count as optimal here.
ROUNDING = 1e-9


def main() -> None:
    """Print the table in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--weights", choices=WEIGHTS, default="size")
    parser.add_argument("--penalty", choices=PENALTIES, default=PENALTIES[0])
    parser.add_argument("--sizes", default="8,12,20,60,200")
    parser.add_argument("--samplers", help="some of the samplers (default: all)")
    args = parser.parse_args()
    sizes = [int(size) for size in args.sizes.split(",")]
    points, _ = make_blobs(
        POINTS, centers=8, n_features=2, random_state=0x1337, center_box=(-20.0, 20.0)
    )
    models = [model(points, size, args.weights, args.penalty) for size in sizes]
    left = [Presolve(samplers.load("exact")()).sample(m, num_reads=1) for m in models]
    if not all(answer.info["proven"] for answer in left):
        raise SystemExit("exact did not end within its time limit")
    print(f"| candidates | {' | '.join(map(str, sizes))} |")
    print("|---|" + "---|" * len(sizes))
    parts = [answer.info["presolve"]["parts"] for answer in left]
    cells = [f"{sum(part)}, {max(part, default=0)}" for part in parts]
    print(f"| left by the presolve, largest part | {' | '.join(cells)} |")
    names = [*samplers.names(), "dwave"]
    chosen = args.samplers.split(",") if args.samplers else names
    if other := {*chosen} - {*names}:
        parser.error(f"--samplers: {', '.join(other)}: not one of {', '.join(names)}")
    with ExitStack() as stack:
        for name in chosen:
            sampler = (
                LeasedPresolve(stack.enter_context(annealer()))
                if name == "dwave"
                else Presolve(samplers.load(name)())
            )
            row = [
                cell(sampler, m, float(answer.first.energy))
                for m, answer in zip(models, left, strict=True)
            ]
            print(f"| `{name}` | {' | '.join(row)} |", flush=True)


@contextmanager
def annealer() -> Iterator[Sampler]:
    """The QPU type ``dwave``, on an emulated device of a service of its own."""
    with tempfile.TemporaryDirectory() as folder:
        service = QpuService(Path(folder), "--time-scale", "0", "--seed", "1")
        token = service.with_tokens("ada")
        try:
            service.start()
            url = f"{service.url}/sapi/v2"
            driver = DWaveQpu.from_config("annealer", {"url": url, "tokenFile": token})
            job = from_environment(job_environment([(driver, driver.acquire())]))
            assert job is not None
            yield job.sampler()
        finally:
            service.kill()


def model(
    points: Doubles, size: int, weights: str, penalty: str
) -> BinaryQuadraticModel:
    """Return the QUBO of clusterings with ``size`` clusters in total."""
    chosen: list[Clustering] = []
    left = size
    for clustering in clusterings(points):
        rest = left - len(clustering.clusters)
        # of the two methods whose number of clusters is drawn, none makes a single one
        if rest == 0 or rest > 1:
            chosen.append(clustering)
            left = rest
        if left == 0:
            break
    return qubos.model(overlaps(chosen), weights, penalty)


def clusterings(points: Doubles) -> Iterator[Clustering]:
    """Yield clusterings with the methods in turn, without end."""
    for seed in count():
        for method in METHODS:
            parameters = draw(method, len(points), RANGES, seed)
            labels = apply(method, points, parameters)
            clusters, _ = assess(points, labels, len(points))
            yield Clustering(method, parameters, seed, True, clusters, labels)


def cell(sampler: Presolve, bqm: BinaryQuadraticModel, optimum: float) -> str:
    """Format the share of optimal reads and the seconds, or why there are none."""
    reads = 1 if sampler.child.properties.get("distinct") else 1000
    shares, seconds, of_cpu = [], [], []
    for seed in SEEDS:
        begin, busy = time.perf_counter(), time.process_time()
        try:
            answer = sampler.sample(bqm, num_reads=reads, seed=seed)
        except InputError as error:
            warnings.warn(str(error), stacklevel=1)
            return "-"
        seconds.append(time.perf_counter() - begin)
        of_cpu.append(time.process_time() - busy)
        times = answer.record.num_occurrences
        optimal = times[answer.record.energy <= optimum * (1 - ROUNDING)].sum()
        shares.append(float(optimal / times.sum()))
    took, cpu = statistics.median(seconds), statistics.median(of_cpu)
    return f"{100 * np.mean(shares):.3g} %, {took:.2g} s ({cpu:.2g} s)"


if __name__ == "__main__":
    main()
