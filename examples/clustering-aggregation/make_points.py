"""Make the 80,000 points of Rocco et al. (QCE 2025, section IV): points.csv."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from sklearn.datasets import make_blobs

from sf_quantum.files import replacing


def main() -> None:
    """Write the points unless they are there."""
    path = Path(sys.argv[1] if len(sys.argv) > 1 else "points.csv")
    if path.exists():
        return
    points, cluster = make_blobs(
        n_samples=80_000,
        centers=8,
        n_features=2,
        random_state=0x1337,
        center_box=(-20.0, 20.0),
    )
    with replacing(path) as file:
        np.savetxt(
            file,
            np.column_stack([points, cluster]),
            fmt=["%.9g", "%.9g", "%d"],
            delimiter=",",
            header="Feature 1,Feature 2,Cluster",
            comments="",
        )


if __name__ == "__main__":
    main()
