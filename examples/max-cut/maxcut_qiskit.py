"""The maximum cut of a graph by QAOA, on the QPU in the environment or simulated.

The program does not depend on sf_quantum: the environment is that of QRMI's Slurm plugin.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import sys
from pathlib import Path

from qiskit import QuantumCircuit
from qiskit.primitives import BaseSamplerV2, StatevectorSampler
from qiskit.transpiler import generate_preset_pass_manager

SHOTS = 2000
# depth 1, for graphs in which a vertex has three neighbours or so: E. Farhi et al.,
# arXiv:1411.4028, and J. Wurtz and P. Love, arXiv:2010.11209, table I
GAMMA, BETA = 0.616, 0.393


def main() -> int:
    """Read the edges, sample the circuit, and write the best cut."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("edges", type=Path, help="CSV with a header, an edge per line")
    args = parser.parse_args()
    with args.edges.open(newline="", encoding="utf-8") as file:
        edges = [(a, b) for a, b in list(csv.reader(file))[1:]]
    names = sorted({name for edge in edges for name in edge})
    pairs = [(names.index(a), names.index(b)) for a, b in edges]
    circuit = QuantumCircuit(len(names))
    circuit.h(range(len(names)))
    for a, b in pairs:
        circuit.rzz(-GAMMA, a, b)
    circuit.rx(2 * BETA, range(len(names)))
    circuit.measure_all()
    types = os.environ.get("QRMI_JOB_QPU_TYPES", "")
    if types and not types.startswith("ibm-"):
        print(
            f"maxcut_qiskit: QPU type {types}: expected one of IBM's", file=sys.stderr
        )
        return 2
    sampler, circuit = (
        on_qpu(circuit) if types else (StatevectorSampler(seed=0), circuit)
    )
    counts = sampler.run([circuit], shots=SHOTS).result()[0].data.meas.get_counts()

    def size(bits: str) -> int:
        return sum(bits[-1 - a] != bits[-1 - b] for a, b in pairs)

    best = max(counts, key=size)
    sides = dict(zip(names, reversed(best), strict=True))
    cut = {
        "cut": size(best),
        "edges": len(edges),
        "side": [name for name in names if sides[name] == "1"],
        "other": [name for name in names if sides[name] == "0"],
        "qpu": os.environ.get("QRMI_JOB_QPU_RESOURCES"),
    }
    Path("cut.json").write_text(json.dumps(cut, indent=2) + "\n", encoding="utf-8")
    return 0


def on_qpu(circuit: QuantumCircuit) -> tuple[BaseSamplerV2, QuantumCircuit]:
    """Compile the circuit for the first QPU in the environment."""
    from qrmi.primitives import QRMIService
    from qrmi.primitives.ibm import SamplerV2, get_backend

    resource = QRMIService().resources()[0]
    passes = generate_preset_pass_manager(2, backend=get_backend(resource))
    return SamplerV2(resource), passes.run(circuit)


if __name__ == "__main__":
    sys.exit(main())
