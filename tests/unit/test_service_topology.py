"""The graphs of annealers are those that D-Wave's own tools build."""

from __future__ import annotations

import pytest

from sf_quantum.qpu.jobs import Topology
from sf_quantum.service.device.emulator.topology import (
    pegasus,
    smallest_pegasus,
    smallest_zephyr,
    zephyr,
)


@pytest.mark.parametrize("size", [2, 3, 6])
def test_as_ocean_builds_them(size: int) -> None:
    graphs = pytest.importorskip("dwave.graphs", reason="the extra dwave is missing")
    built = (pegasus(size), graphs.pegasus_graph(size))
    other = (zephyr(size), graphs.zephyr_graph(size))
    for ours, theirs in (built, other):
        assert set(ours.qubits) == set(theirs.nodes)
        assert set(ours.couplers) == {tuple(sorted(edge)) for edge in theirs.edges}


@pytest.mark.parametrize(
    ("graph", "labels", "qubits", "couplers"),
    [
        # the largest of each that D-Wave has built: Advantage and Advantage2
        (pegasus(16), 5760, 5640, 40484),
        (zephyr(12), 4800, 4800, 45864),
    ],
)
def test_sizes_of_real_ones(
    graph: Topology, labels: int, qubits: int, couplers: int
) -> None:
    assert (graph.labels, len(graph.qubits), len(graph.couplers)) == (
        labels,
        qubits,
        couplers,
    )
    assert graph.qubits[-1] < labels


@pytest.mark.parametrize("qubits", [1, 40, 41, 128, 129, 5000])
def test_the_smallest_that_is_large_enough(qubits: int) -> None:
    graph, (size,) = smallest_pegasus(qubits), smallest_pegasus(qubits).shape
    assert len(graph.qubits) >= qubits
    assert size == 2 or len(pegasus(size - 1).qubits) < qubits
    graph, size = smallest_zephyr(qubits), smallest_zephyr(qubits).shape[0]
    assert len(graph.qubits) >= qubits
    assert size == 1 or len(zephyr(size - 1).qubits) < qubits
