"""The maximum cut of a graph, on the QPU in the environment or by simulated annealing."""

from __future__ import annotations

import argparse
import csv
import json
from pathlib import Path

from dimod import SPIN, BinaryQuadraticModel

from sf_quantum.qpu.environment import from_environment
from sf_quantum.samplers.neal import NealSampler


def main() -> None:
    """Read the edges, find a large cut, and write it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("edges", type=Path, help="CSV with a header, an edge per line")
    parser.add_argument("--reads", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    with args.edges.open(newline="", encoding="utf-8") as file:
        edges = [(a, b) for a, b in list(csv.reader(file))[1:]]
    # an edge within a side costs 1, an edge between the sides gains 1
    model = BinaryQuadraticModel({}, dict.fromkeys(edges, 1.0), 0.0, SPIN)
    remote = from_environment()
    sampler = NealSampler() if remote is None else remote.sampler()
    samples = sampler.sample(model, num_reads=args.reads, seed=args.seed)
    best = samples.first
    cut = {
        "cut": round((len(edges) - best.energy) / 2),
        "edges": len(edges),
        "side": sorted(name for name, spin in best.sample.items() if spin > 0),
        "other": sorted(name for name, spin in best.sample.items() if spin < 0),
        "qpu": samples.info.get("qpu"),
    }
    Path("cut.json").write_text(json.dumps(cut, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
