"""The samples of a consensus problem, read without dimod to avoid its slow import."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

import numpy as np
from numpy.typing import NDArray

from sf_quantum.clustering.kernels import Doubles
from sf_quantum.errors import InputError
from sf_quantum.files import JSON, describe_missing, mapping, read_json


@dataclass(frozen=True)
class Samples:
    """Selections of C candidates, as a sampler returned them."""

    #: shape (rows, C): whether the candidate is chosen
    chosen: NDArray[np.bool_]
    #: shape (rows,)
    energies: Doubles
    #: shape (rows,): the number of reads of each row
    reads: NDArray[np.int64]
    #: data that the sampler reports about the run
    info: Mapping[str, JSON]


def read_samples(path: str, candidates: int) -> Samples:
    """Read samples of ``sfq solve``, in the format of ``SampleSet.to_serializable()``.

    :param candidates: number of the problem's candidates
    :raises InputError: if the file is not a sample set, or has samples of other variables
    """
    content = read_json(path, "samples")
    try:
        variables = cast("list[int]", content["variable_labels"])
        samples = _samples(content, len(variables))
        order = np.argsort(variables)
        in_order = [variables[position] for position in order]
        if not np.isfinite(samples.energies).all():
            raise ValueError("an energy is not a number")
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise InputError(
            f"{path}: not a dimod SampleSet as sfq solve writes it ({describe_missing(error)})"
        ) from error
    if in_order != [*range(candidates)]:
        raise InputError(
            f"{path}: samples of {len(variables)} variables, but the clusterings have "
            f"{candidates} clusters; give the clusterings of the problem"
        )
    return Samples(
        samples.chosen[:, order], samples.energies, samples.reads, samples.info
    )


def _samples(content: Mapping[str, JSON], variables: int) -> Samples:
    """Read the arrays of a sample set, with columns in the order of the set's labels."""
    version = str(mapping(content["version"])["sampleset_schema"])
    if not version.startswith("3."):
        raise ValueError(f"schema {version}, expected 3.x")
    data = _array(content["sample_data"])
    if content.get("sample_packed", True):
        # the first variable is the lowest bit of a row's first number
        octets = data.astype("<u4").view(np.uint8)
        data = np.unpackbits(octets, axis=-1, bitorder="little", count=variables)
    vectors = mapping(content["vectors"])
    energies, reads = _array(vectors["energy"]), _array(vectors["num_occurrences"])
    rows = len(data)
    if data.shape != (rows, variables) or not energies.shape == reads.shape == (rows,):
        raise ValueError("samples, energies and reads are not of the same number")
    if reads.dtype.kind not in "iu" or (reads.astype(np.int64) < 0).any():
        raise ValueError("a number of reads is not a whole number from 0")
    return Samples(
        np.greater(data, 0),
        energies.astype(np.float64),
        reads.astype(np.int64),
        mapping(content.get("info")),
    )


def _array(serialized: JSON) -> NDArray[np.generic]:
    """Read one of dimod's arrays; a wrong shape or element raises a ``ValueError``."""
    content = mapping(serialized)
    array = np.array(content["data"], dtype=str(content["data_type"]))
    return array.reshape(tuple(cast("list[int]", content["shape"])))
