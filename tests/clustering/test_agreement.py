"""The adjusted Rand index, against scikit-learn."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import adjusted_rand_score

from sf_quantum.clustering.consensus import adjusted_rand

LABELS = st.lists(
    st.tuples(st.integers(0, 4), st.sampled_from("abcd")), min_size=2, max_size=40
)


@settings(derandomize=True, deadline=None, max_examples=60)
@given(LABELS)
def test_it_is_scikit_learns(pairs: list[tuple[int, str]]) -> None:
    labels = np.array([ours for ours, _ in pairs], np.int32)
    truth = [known for _, known in pairs]
    assert adjusted_rand(labels, truth) == pytest.approx(
        adjusted_rand_score(truth, labels)
    )
