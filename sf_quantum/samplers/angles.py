"""QAOA angles: initial values, and reuse from one problem to the next."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sf_quantum.errors import InputError
from sf_quantum.files import JSON, read_json

_EXPECTED = (
    "expected angles as qaoa writes them: gamma and beta, two lists with one number per "
    "layer"
)
# End values of the ramps of gamma and beta. On 12 parts of real clusterings with 7 to 12
# variables, 1 % of the reads are optimal with these, 7 % after tuning both ramps, and 8 %
# with the best possible end values.
_RAMPS = (2.0, 0.6)


def first(depth: int, known: NDArray[np.float64] | None) -> NDArray[np.float64]:
    """Choose the initial angles.

    :param known: the angles of an earlier problem
    :returns: shape (2, layers): gamma (cost layers) and beta (mixer layers)
    """
    if known is not None:
        return _stretched(known, depth)
    along = (np.arange(depth) + 0.5) / depth
    return np.array([_RAMPS[0] * along, _RAMPS[1] * (1 - along)])


def given(angles: JSON) -> NDArray[np.float64] | None:
    """Read the parameter ``angles``: the angles themselves, or the name of their file.

    :returns: see :func:`first`; ``None`` if the file does not exist yet
    :raises InputError: if the content is not angles
    """
    match angles:
        case None:
            return None
        case str() as path:
            exists = Path(path).exists()
            return _angles(read_json(path, "angles"), path) if exists else None
        case dict():
            return _angles(angles, "angles")
    raise InputError(f"angles: {angles!r:.40}: expected a file name, or angles")


def check_writable(path: Path) -> None:
    """Check that a file can be written, before anything runs.

    :raises InputError: if its folder is missing or not writable
    """
    folder = path.parent
    if not folder.is_dir() or not os.access(folder, os.W_OK) or path.is_dir():
        raise InputError(
            f"angles: {path}: cannot be written; name a file in an existing folder that "
            "you may write to"
        )


def as_json(angles: NDArray[np.float64]) -> dict[str, JSON]:
    """Convert angles to the form that :func:`given` reads."""
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
