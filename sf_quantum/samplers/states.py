"""Conversions between dimod's models and sample sets and plain arrays of bits."""

from __future__ import annotations

from collections.abc import Hashable
from typing import TypeAlias

import numpy as np
from dimod import BINARY, BinaryQuadraticModel, SampleSet
from numpy.typing import NDArray

from sf_quantum.samplers.reduction import Quadratic

#: shape (reads, variables)
Bits: TypeAlias = NDArray[np.int8]


def quadratic(binary: BinaryQuadraticModel) -> Quadratic:
    """Index the biases of a binary model by the positions of its variables."""
    vectors = binary.to_numpy_vectors(variable_order=[*binary.variables])
    pairs = zip(*(vector.tolist() for vector in vectors.quadratic), strict=True)
    return Quadratic.of(vectors.linear_biases.tolist(), pairs)


def as_binary(bqm: BinaryQuadraticModel) -> BinaryQuadraticModel:
    """Copy a model, with binary variables instead of spins."""
    return bqm.change_vartype(BINARY, inplace=False)


def sample_set(rows: Bits, bqm: BinaryQuadraticModel) -> SampleSet:
    """Build a sample set with the model's own variable type.

    :param rows: bits, one column per variable in the model's order
    """
    binary = as_binary(bqm)
    # dimod leaves its methods untyped
    samples: SampleSet = SampleSet.from_samples_bqm(  # type: ignore[no-untyped-call]
        (rows, [*binary.variables]), binary
    )
    samples.change_vartype(bqm.vartype, inplace=True)  # type: ignore[no-untyped-call]
    return samples


def bits_of(samples: SampleSet, labels: list[Hashable]) -> Bits:
    """Extract the states of a sample set as bits, one column per label."""
    binary = samples.change_vartype(BINARY, inplace=False)  # type: ignore[no-untyped-call]
    columns = [binary.variables.index(label) for label in labels]
    bits: Bits = binary.record.sample[:, columns].astype(np.int8)
    return bits
