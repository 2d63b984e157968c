"""The example's points are those that the paper drew with scikit-learn."""

from __future__ import annotations

import runpy

import numpy as np
from sklearn.datasets import make_blobs

from tests.support.folders import EXAMPLES

EXAMPLE = EXAMPLES / "clustering-aggregation"


def test_points_are_those_of_scikit_learn() -> None:
    points, clusters = runpy.run_path(str(EXAMPLE / "make_points.py"))["blobs"](80_000)
    expected_points, expected_clusters = make_blobs(
        n_samples=80_000,
        centers=8,
        n_features=2,
        random_state=0x1337,
        center_box=(-20.0, 20.0),
    )
    np.testing.assert_array_equal(points, expected_points)
    np.testing.assert_array_equal(clusters, expected_clusters)
