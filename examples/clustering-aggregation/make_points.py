"""Make the 80,000 points of Rocco et al. (QCE 2025, section IV): points.csv."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sf_quantum.files import replacing

SEED = 0x1337
CENTERS = 8
BOX = 20.0
POINTS = 80_000


def blobs(number: int) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Draw points around centers as scikit-learn's ``make_blobs`` does, bit for bit.

    NumPy's ``RandomState`` never changes its streams, and scikit-learn and SciPy, 200 MB,
    are not needed for this one call.

    :returns: the points, and the index of each point's center
    """
    draws = np.random.RandomState(SEED)
    centers = draws.uniform(-BOX, BOX, size=(CENTERS, 2))
    points = np.concatenate(
        [draws.normal(center, 1.0, size=(number // CENTERS, 2)) for center in centers]
    )
    clusters = np.repeat(np.arange(CENTERS), number // CENTERS)
    order = np.arange(len(points))
    draws.shuffle(order)
    return points[order], clusters[order]


def main() -> None:
    """Write the points unless they are there."""
    path = Path(sys.argv[1] if len(sys.argv) > 1 else "points.csv")
    if path.exists():
        return
    points, clusters = blobs(POINTS)
    with replacing(path) as file:
        np.savetxt(
            file,
            np.column_stack([points, clusters]),
            fmt=["%.9g", "%.9g", "%d"],
            delimiter=",",
            header="Feature 1,Feature 2,Cluster",
            comments="",
        )


if __name__ == "__main__":
    main()
