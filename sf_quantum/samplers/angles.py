"""The angles of QAOA's circuits, between one problem and the next."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sf_quantum.errors import InputError
from sf_quantum.files import JSON, read_json

_EXPECTED = (
    "expected angles, as qaoa tells them: gamma and beta, two lists of as many numbers as "
    "layers"
)
# Where the ramps of gamma and beta end. On 12 parts of real clusterings with 7 to 12
# variables 1 % of the reads are optimal with these, 7 % once both ramps are tuned, and 8 %
# with the best two.
_RAMPS = (2.0, 0.6)


def first(depth: int, known: NDArray[np.float64] | None) -> NDArray[np.float64]:
    """Choose those to start from.

    :param known: of an earlier problem, if there are any
    :returns: two by layers: gamma, of the energy, and beta, of the mixing
    """
    if known is not None:
        return _stretched(known, depth)
    along = (np.arange(depth) + 0.5) / depth
    return np.array([_RAMPS[0] * along, _RAMPS[1] * (1 - along)])


def given(angles: JSON) -> NDArray[np.float64] | None:
    """Read a parameter: the angles, or the file that they may be in.

    :returns: see :func:`first`; ``None`` if there is no such file yet
    :raises InputError: if these are no angles
    """
    match angles:
        case None:
            return None
        case str() as path:
            exists = Path(path).exists()
            return _angles(read_json(path, "angles"), path) if exists else None
        case dict():
            return _angles(angles, "angles")
    raise InputError(f"angles: {angles!r:.40}: expected the name of a file, or angles")


def check_writable(path: Path) -> None:
    """Refuse a file that the angles could not be written to, before anything runs.

    :raises InputError: if its folder is missing or not writable
    """
    folder = path.parent
    if not folder.is_dir() or not os.access(folder, os.W_OK) or path.is_dir():
        raise InputError(
            f"angles: {path}: cannot be written; name a file in an existing folder that "
            "you may write to"
        )


def told(angles: NDArray[np.float64]) -> dict[str, JSON]:
    """Write angles as :func:`given` reads them."""
    return {"gamma": angles[0].tolist(), "beta": angles[1].tolist()}


def _angles(content: Mapping[str, JSON], where: str) -> NDArray[np.float64]:
    rows = content.get("gamma"), content.get("beta")
    try:
        angles = np.array(rows, float)
    except (TypeError, ValueError) as error:
        raise InputError(f"{where}: {_EXPECTED}") from error
    if angles.ndim != 2 or not angles.size or not np.isfinite(angles).all():
        raise InputError(f"{where}: {_EXPECTED}")
    return angles


def _stretched(angles: NDArray[np.float64], depth: int) -> NDArray[np.float64]:
    if angles.shape[1] == depth:
        return angles
    before = (np.arange(angles.shape[1]) + 0.5) / angles.shape[1]
    along = (np.arange(depth) + 0.5) / depth
    return np.array([np.interp(along, before, row) for row in angles])
