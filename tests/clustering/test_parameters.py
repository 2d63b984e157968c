"""Parameters: the same seed draws the same, within the ranges; files are looked over."""

from __future__ import annotations

import json
from pathlib import Path
from typing import cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sf_quantum.clustering.methods import (
    METHODS,
    Parameters,
    Ranges,
    apply,
    dbscan,
    draw,
    from_file,
    kmeans,
    single_linkage,
)
from sf_quantum.errors import InputError
from sf_quantum.files import JSON

quick = settings(derandomize=True, deadline=None, max_examples=100)
seeds = st.integers(0, 2**70)


@pytest.mark.parametrize("method", METHODS)
@quick
@given(seeds)
def test_the_same_seed_draws_the_same(method: str, seed: int) -> None:
    assert draw(method, 100, Ranges(), seed) == draw(method, 100, Ranges(), seed)


def test_these_seeds_always_drew_this() -> None:
    # a run is repeated by its seeds alone: other numbers here break old summaries
    assert draw("kmeans", 80_000, Ranges(), 0) == {
        "centres": [50951, 65061, 40887, 21581, 3277, 1322, 24624, 14021, 6018]
    }
    assert draw("dbscan", 80_000, Ranges(), 0)["radius"] == pytest.approx(
        4.1361380112178425
    )
    assert [
        draw("single-linkage", 80_000, Ranges(), seed)["clusters"] for seed in range(6)
    ] == [10, 8, 7, 9, 6, 9]


@quick
@given(seeds, st.integers(1, 50), st.integers(0, 20))
def test_centres_are_distinct_rows_as_many_as_the_range_says(
    seed: int, low: int, more: int
) -> None:
    ranges = Ranges(clusters=(low, low + more))
    centres = cast("list[int]", draw("kmeans", 80, ranges, seed)["centres"])
    assert low <= len(centres) <= low + more
    assert len(set(centres)) == len(centres)
    assert set(centres) <= set(range(80))


@quick
@given(seeds, st.floats(1e-3, 1e3), st.floats(1, 10), st.integers(1, 99))
def test_the_radius_is_in_its_range(
    seed: int, low: float, factor: float, least: int
) -> None:
    ranges = Ranges(radius=(low, low * factor), least=least)
    drawn = draw("dbscan", 80, ranges, seed)
    assert low <= cast(float, drawn["radius"]) <= low * factor
    assert drawn["least"] == least


def test_both_ends_of_the_range_of_clusters_are_drawn() -> None:
    drawn = {draw("single-linkage", 80, Ranges(), s)["clusters"] for s in range(200)}
    assert drawn == set(range(4, 11))
    numbers = {
        len(cast("list[int]", draw("kmeans", 80, Ranges(), seed)["centres"]))
        for seed in range(200)
    }
    assert numbers == set(range(4, 11))


def test_radii_are_spread_over_the_range() -> None:
    radii = [cast(float, draw("dbscan", 80, Ranges(), s)["radius"]) for s in range(400)]
    counts, _ = np.histogram(radii, bins=4, range=(1.2, 4.5))
    assert counts.sum() == 400
    assert counts.min() > 60


@pytest.mark.parametrize("method", ["kmeans", "single-linkage"])
def test_more_clusters_than_points_are_refused(method: str) -> None:
    with pytest.raises(InputError, match="8 clusters of 7 points: choose from 1 to 7"):
        draw(method, 7, Ranges(clusters=(8, 8)), 0)


GOOD: dict[str, Parameters] = {
    "kmeans": {"centres": [2, 0]},
    "dbscan": {"radius": 1.5, "least": 2},
    "single-linkage": {"clusters": 3},
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "parameters.json"


@pytest.mark.parametrize("method", METHODS)
def test_a_files_entry_is_taken_as_it_is(path: Path, method: str) -> None:
    path.write_text(json.dumps({"0": {}, "3": GOOD}))
    assert from_file(path, method, 3) == GOOD[method]


@pytest.mark.parametrize("method", METHODS)
def test_apply_runs_the_method_with_its_parameters(method: str) -> None:
    points = np.random.default_rng(0).normal(size=(20, 2))
    expected = {
        "kmeans": kmeans(points, [2, 0]),
        "dbscan": dbscan(points, 1.5, 2),
        "single-linkage": single_linkage(points, 3),
    }
    assert np.array_equal(apply(method, points, GOOD[method]), expected[method])


@pytest.mark.parametrize(
    ("method", "entry", "line"),
    [
        ("kmeans", None, ": expected an object with centres"),
        ("kmeans", [1, 2], ": expected an object with centres"),
        ("kmeans", {}, ": expected an object with centres"),
        ("kmeans", {"centers": [1]}, ": expected an object with centres"),
        ("kmeans", {"centres": [1], "seed": 3}, ": expected an object with centres"),
        ("kmeans", {"centres": 3}, ".centres: expected a list of row numbers"),
        ("kmeans", {"centres": []}, ".centres: expected a list of row numbers"),
        ("kmeans", {"centres": [1, 2.5]}, ".centres: expected a list of row numbers"),
        ("kmeans", {"centres": [1, True]}, ".centres: expected a list of row numbers"),
        ("kmeans", {"centres": ["1"]}, ".centres: expected a list of row numbers"),
        ("dbscan", {"radius": 1}, ": expected an object with least and radius"),
        ("dbscan", {"radius": 0, "least": 2}, ".radius: expected a number above 0"),
        ("dbscan", {"radius": -1.5, "least": 2}, ".radius: expected a number above 0"),
        ("dbscan", {"radius": "2", "least": 2}, ".radius: expected a number above 0"),
        ("dbscan", {"radius": True, "least": 2}, ".radius: expected a number above 0"),
        ("dbscan", {"radius": 10**400, "least": 2}, ".radius: expected a number above 0"),
        ("dbscan", {"radius": float("nan"), "least": 2}, ".radius: expected a number above 0"),
        ("dbscan", {"radius": float("inf"), "least": 2}, ".radius: expected a number above 0"),
        ("dbscan", {"radius": 1, "least": 0}, ".least: expected a whole number of at least 1"),
        ("dbscan", {"radius": 1, "least": 2.0}, ".least: expected a whole number of at least 1"),
        ("single-linkage", {"clusters": 0}, ".clusters: expected a whole number of at least 1"),
        ("single-linkage", {"clusters": "4"}, ".clusters: expected a whole number of at least 1"),
        ("single-linkage", {"clusters": True}, ".clusters: expected a whole number of at least 1"),
    ],
)  # fmt: skip
def test_a_wrong_entry_is_named(
    path: Path, method: str, entry: JSON, line: str
) -> None:
    path.write_text(json.dumps({"7": {method: entry}}))
    with pytest.raises(InputError) as caught:
        from_file(path, method, 7)
    assert str(caught.value) == f"{path}, 7.{method}{line}"


@pytest.mark.parametrize("of_seed", [{}, [], None, "kmeans", {"dbscan": {}}])
def test_a_seed_without_the_method_is_named(path: Path, of_seed: JSON) -> None:
    path.write_text(json.dumps({"7": of_seed}))
    with pytest.raises(InputError) as caught:
        from_file(path, "kmeans", 7)
    assert str(caught.value) == f"{path}, 7.kmeans: expected an object with centres"


def test_a_missing_seed_is_named_with_those_there_are(path: Path) -> None:
    path.write_text(json.dumps({"10": {}, "9": {}, "x": {}}))
    with pytest.raises(InputError) as caught:
        from_file(path, "kmeans", 2)
    assert str(caught.value) == f"{path}: no seed 2; the seeds are 9, x, 10"
