"""Time and peak memory of each tool, from 10,000 points up, and against scikit-learn.

    python tests/benchmarks/tools.py [--largest 1000000] [--opponent 20000]

Whole processes, start-up included; a run's memory is the kernel's own account of it.
Each tool is run `--runs` times and the median is printed. The opponents are
scikit-learn's KMeans, DBSCAN, AgglomerativeClustering and silhouette_score on the same
file in the same run, up to `--opponent` points: above that their memory grows into the
gigabytes.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import numpy as np
from sklearn.datasets import make_blobs

METHODS = ("kmeans", "dbscan", "single-linkage")
OPPONENT = """
import sys, json, numpy as np
points = np.loadtxt(sys.argv[2], delimiter=",", skiprows=1)
p = json.load(open(sys.argv[3]))["parameters"]
if sys.argv[1] == "kmeans":
    from sklearn.cluster import KMeans
    KMeans(len(p["centres"]), init=points[p["centres"]], n_init=1, max_iter=200, tol=0).fit(points)
elif sys.argv[1] == "dbscan":
    from sklearn.cluster import DBSCAN
    DBSCAN(eps=p["radius"], min_samples=p["least"]).fit(points)
elif sys.argv[1] == "single-linkage":
    from sklearn.cluster import AgglomerativeClustering
    AgglomerativeClustering(p["clusters"], linkage="single").fit(points)
else:
    from sklearn.metrics import silhouette_score
    silhouette_score(points, np.loadtxt("labels.csv", skiprows=1))
"""

# the kernel counts the memory of the process that forked towards its child's peak, so a
# small process has to do it
LAUNCHER = """
import os, sys, time
started = time.perf_counter()
pid = os.spawnvp(os.P_NOWAIT, sys.argv[1], sys.argv[1:])
_, status, usage = os.wait4(pid, 0)
print([time.perf_counter() - started, usage.ru_maxrss / 1024])
sys.exit(status != 0)
"""


class Cost(NamedTuple):
    """Time and memory of a process."""

    seconds: float
    megabytes: float


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--largest", type=int, default=1_000_000)
    parser.add_argument("--opponent", type=int, default=20_000)
    parser.add_argument("--runs", type=int, default=3)
    args = parser.parse_args()
    sizes = [(n, 2) for n in (10_000, 20_000, 40_000, 80_000, 160_000, 1_000_000)]
    print(
        f"{'points':>9} {'d':>2} {'tool':24} {'s':>7} {'MB':>6}  growth  scikit-learn"
    )
    before: dict[str, tuple[int, Cost]] = {}
    for n, d in [*sizes, (50_000, 8)]:
        if n > args.largest:
            continue
        with tempfile.TemporaryDirectory() as folder:
            opponent = n <= args.opponent
            for tool, cost, other in measure(Path(folder), n, d, args.runs, opponent):
                growth = ""
                if tool in before and d == 2:
                    size, old = before[tool]
                    growth = (
                        f"n^{np.log(cost.seconds / old.seconds) / np.log(n / size):.2f}"
                    )
                before[tool] = n, cost
                ratio = (
                    f"{other.seconds / cost.seconds:.1f} x the time, "
                    f"{other.megabytes / cost.megabytes:.1f} x the memory"
                    if other
                    else ""
                )
                print(
                    f"{n:9,} {d:2} {tool:24} {cost.seconds:7.2f} {cost.megabytes:6.0f}"
                    f"  {growth:6}  {ratio}",
                    flush=True,
                )


def measure(
    folder: Path, n: int, d: int, runs: int, opponent: bool
) -> list[tuple[str, Cost, Cost | None]]:
    """Run the four tools one after the other in ``folder``."""
    write_points(folder / "points.csv", n, d)
    rows: list[tuple[str, Cost, Cost | None]] = []

    def add(tool: str, command: list[str], other: list[str] | None = None) -> None:
        ours = cost(command, folder, runs)
        rows.append((tool, ours, cost(other, folder, 1) if other else None))

    def rival(what: str, file: str) -> list[str] | None:
        command = [sys.executable, "-c", OPPONENT, what, "points.csv", file]
        return command if opponent else None

    for method in METHODS:
        command = ["sfq", "cluster", "--points", "points.csv", "--method", method]
        command += ["--seed", "1", "--radius", "1.2:2" if d == 2 else "2:2.5"]
        file = f"{method}.json"
        add(f"cluster {method}", [*command, "--output", file], rival(method, file))
    files = [f"{method}.json" for method in METHODS]
    add("qubo", ["sfq", "qubo", *files, "--output", "problem.json"])
    solve = ["sfq", "solve", "--problem", "problem.json", "--seed", "1"]
    add("solve", [*solve, "--reads", "1000", "--output", "samples.json"])
    one_sample(folder)
    score = ["sfq", "score", "--points", "points.csv", *files, "--samples"]
    add("score, one consensus", [*score, "one.json"], rival("silhouette", files[0]))
    paper = [*("sfq", "qubo", *files, "--weights", "size"), "--penalty", "candidates"]
    subprocess.run([*paper, "--output", "problem.json"], cwd=folder, check=True)
    subprocess.run([*solve, "--output", "samples.json"], cwd=folder, check=True)
    add("score, all low-energy", [*score, "samples.json"])
    return rows


def write_points(path: Path, n: int, d: int) -> None:
    """Write eight blobs, as in Rocco et al. (2025)."""
    points, _ = make_blobs(
        n, centers=8, n_features=d, random_state=0x1337, center_box=(-20.0, 20.0)
    )
    header = ",".join(f"x{i}" for i in range(d))
    np.savetxt(path, points, "%.9g", ",", header=header, comments="")


def one_sample(folder: Path) -> None:
    """Keep the best sample only."""
    import dimod

    content = json.loads((folder / "samples.json").read_text())
    samples = dimod.SampleSet.from_serializable(content)  # type: ignore[no-untyped-call]
    first = samples.truncate(1)
    (folder / "one.json").write_text(json.dumps(first.to_serializable()))


def cost(command: list[str], folder: Path, runs: int) -> Cost:
    """Measure the median time and maximum memory of a command's whole process."""
    costs = []
    for _ in range(runs):
        done = subprocess.run(
            [sys.executable, "-S", "-c", LAUNCHER, *command],
            cwd=folder,
            stdout=subprocess.PIPE,
            check=True,
        )
        costs.append(Cost(*json.loads(done.stdout.splitlines()[-1])))
    return Cost(
        statistics.median(c.seconds for c in costs), max(c.megabytes for c in costs)
    )


if __name__ == "__main__":
    main()
