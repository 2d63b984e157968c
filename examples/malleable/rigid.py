"""Clustering aggregation in one Slurm job, whose nodes idle while the QPU is used.

    sbatch --nodes=3 --ntasks-per-node=1 --cpus-per-task=CPUS --wrap 'python rigid.py URL'

URL is that of the QPU service. Arguments after it start the MPI program (default: mpiexec).
"""

from __future__ import annotations

import json
import subprocess
import sys

import dimod

url, *launch = sys.argv[1:]


def output(*command: str, told: str = "") -> str:
    """Run a command; return what it prints."""
    done = subprocess.run(
        command, input=told, stdout=subprocess.PIPE, text=True, check=True
    )
    return done.stdout.strip()


def solve() -> list[int]:
    """Solve the QUBO on the QPU; return the chosen clusters."""
    files = ("--problem", "qubo.json", "--output", "samples.json")
    output("sfq", "lease", "--url", url, "--", "sfq", "solve", *files)
    with open("samples.json") as file:
        samples: dimod.SampleSet = dimod.SampleSet.from_serializable(json.load(file))  # type: ignore[no-untyped-call]
    return [cluster for cluster, value in samples.first.sample.items() if value]


for iteration in range(2):
    print(output(*(launch or ["mpiexec"]), "./aggregation", "cluster", str(iteration)))
    chosen = solve()
    score = float(output("./aggregation", "score", told=" ".join(map(str, chosen))))
    print(f"iteration {iteration}: silhouette {score:.3f}", flush=True)
    if score >= 0.8:
        break
