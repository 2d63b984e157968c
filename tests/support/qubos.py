"""The QUBOs and samples of clusterings, as dimod's objects and from them."""

from __future__ import annotations

from typing import cast

from dimod import BINARY, BinaryQuadraticModel, SampleSet

from sf_quantum.clustering.consensus_qubo import Overlaps, qubo
from sf_quantum.clustering.samples import Samples
from sf_quantum.files import JSON


def model(found: Overlaps, weights: str, penalty: str) -> BinaryQuadraticModel:
    """Build the QUBO of clusterings; variable i is candidate i."""
    built = qubo(found, weights, penalty)
    return BinaryQuadraticModel.from_numpy_vectors(
        built.linear, (*built.pairs.T, built.quadratic), 0.0, BINARY
    )


def samples_of(found: SampleSet) -> Samples:
    """Convert a sample set whose variables are numbered."""
    columns = [found.variables.index(v) for v in sorted(found.variables)]
    record = found.record
    info = cast("dict[str, JSON]", found.info)
    chosen = record.sample[:, columns] > 0
    return Samples(chosen, record.energy, record.num_occurrences, info)
