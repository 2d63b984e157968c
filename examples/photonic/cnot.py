"""The truth table of a CNOT of dual-rail qubits, on the photonic QPU in the environment.

A qubit is a photon in one of two modes. The gate is that of Ralph et al.,
arXiv:quant-ph/0112088: it succeeds in one of nine shots, which leave one photon in the modes
of each qubit.
"""

from __future__ import annotations

import argparse
import sys

from perceval import BasicState, catalog
from perceval.runtime import ExecutionFactory

from sf_quantum.errors import InputError
from sf_quantum.qpu.environment import leased

QUBIT = {0: (1, 0), 1: (0, 1)}


def main() -> int:
    """Run the gate for each input, and print how often the qubits were right."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shots", type=int, default=10_000)
    args = parser.parse_args()
    try:
        computer = leased().photonic_computer()
    except InputError as error:
        print(error, file=sys.stderr)
        return 2
    for control, target in ((0, 0), (0, 1), (1, 0), (1, 1)):
        experiment = catalog["postprocessed cnot"].build_experiment()
        experiment.with_input(BasicState([*QUBIT[control], *QUBIT[target]]))
        experiment.min_detected_photons_filter(2)
        sampling = ExecutionFactory(computer, experiment, args.shots).sample_count
        counts = sampling.execute_sync(max_samples=args.shots)["results"]
        right = counts[BasicState([*QUBIT[control], *QUBIT[target ^ control]])]
        share = right / max(1, sum(counts.values()))
        print(f"{control}{target} -> {control}{target ^ control}: {share:.1%}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
