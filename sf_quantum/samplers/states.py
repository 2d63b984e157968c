"""States of bits, to and from dimod's sample sets and the biases by numbers."""

from __future__ import annotations

from collections.abc import Hashable
from typing import TypeAlias

import numpy as np
from dimod import BINARY, BinaryQuadraticModel, SampleSet
from numpy.typing import NDArray

from sf_quantum.samplers.reduction import Quadratic

#: reads by variables
Bits: TypeAlias = NDArray[np.int8]


def quadratic(binary: BinaryQuadraticModel) -> Quadratic:
    """Write a binary model's biases by the numbers of its variables."""
    vectors = binary.to_numpy_vectors(variable_order=[*binary.variables])
    pairs = zip(*(vector.tolist() for vector in vectors.quadratic), strict=True)
    return Quadratic.of(vectors.linear_biases.tolist(), pairs)


def as_binary(bqm: BinaryQuadraticModel) -> BinaryQuadraticModel:
    """Copy a model of bits or spins as one of bits."""
    return bqm.change_vartype(BINARY, inplace=False)


def sample_set(rows: Bits, bqm: BinaryQuadraticModel) -> SampleSet:
    """Make the answer to a problem, in its own kind of variables.

    :param rows: bits, a column per variable in the order of the model's
    """
    binary = as_binary(bqm)
    # dimod leaves its methods untyped
    samples: SampleSet = SampleSet.from_samples_bqm(  # type: ignore[no-untyped-call]
        (rows, [*binary.variables]), binary
    )
    samples.change_vartype(bqm.vartype, inplace=True)  # type: ignore[no-untyped-call]
    return samples


def bits_of(samples: SampleSet, labels: list[Hashable]) -> Bits:
    """Read a sample set's states.

    :returns: bits, a column per label
    """
    binary = samples.change_vartype(BINARY, inplace=False)  # type: ignore[no-untyped-call]
    columns = [binary.variables.index(label) for label in labels]
    bits: Bits = binary.record.sample[:, columns].astype(np.int8)
    return bits
