"""The graphs of annealers are those that D-Wave's own tools build."""

from __future__ import annotations

from pathlib import Path

import pytest

from sf_quantum.protocol.descriptions import Topology
from sf_quantum.service.device.emulator.device import EmulatedDevice
from sf_quantum.service.device.emulator.topology import (
    TOPOLOGIES,
    pegasus,
    smallest_pegasus,
    smallest_zephyr,
    working,
    zephyr,
)
from tests.support.service import running_queue


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


@pytest.mark.parametrize("kind", TOPOLOGIES)
@pytest.mark.parametrize("qubits", [2, 3, 9, 40, 100, 300])
def test_a_device_has_as_many_qubits_as_are_configured(kind: str, qubits: int) -> None:
    whole, graph = TOPOLOGIES[kind](qubits), working(kind, qubits, frozenset())
    assert len(graph.qubits) == qubits
    assert {*graph.couplers} == {
        pair for pair in whole.couplers if {*pair} <= {*graph.qubits}
    }
    assert (graph.kind, graph.shape, graph.labels) == (kind, whole.shape, whole.labels)
    # in one piece, so that problems can be embedded
    joined = {graph.qubits[0]}
    for _ in graph.qubits:
        joined.update(*(pair for pair in graph.couplers if not joined.isdisjoint(pair)))
    assert joined == {*graph.qubits}


@pytest.mark.parametrize("number", [0, -1])
def test_a_qubit_out_of_service_is_the_only_one_that_goes(number: int) -> None:
    graph = working("pegasus", 100, frozenset())
    gone = graph.qubits[number]
    left = working("pegasus", 100, frozenset({gone}))
    assert {*left.qubits} == {*graph.qubits} - {gone}
    # one of the whole graph that the device did not show
    hidden = next(q for q in smallest_pegasus(100).qubits if q not in graph.qubits)
    left = working("pegasus", 100, frozenset({hidden}))
    assert len(left.qubits) == 99
    assert {*left.qubits} < {*graph.qubits}


@pytest.mark.parametrize("qubits", [1, 40, 41, 128, 129, 5000])
def test_the_smallest_that_is_large_enough(qubits: int) -> None:
    graph, (size,) = smallest_pegasus(qubits), smallest_pegasus(qubits).shape
    assert len(graph.qubits) >= qubits
    assert size == 2 or len(pegasus(size - 1).qubits) < qubits
    graph, size = smallest_zephyr(qubits), smallest_zephyr(qubits).shape[0]
    assert len(graph.qubits) >= qubits
    assert size == 1 or len(zephyr(size - 1).qubits) < qubits


async def test_an_annealers_graph_is_made_before_there_are_requests(
    tmp_path: Path,
) -> None:
    device = EmulatedDevice(qubits=47)
    before = working.cache_info().misses
    async with running_queue(tmp_path, device):
        assert working.cache_info().misses == before + 1
        assert device.description.graph is not None
        assert working.cache_info().misses == before + 1


def test_a_copied_device_has_its_own_qubits() -> None:
    annealer = EmulatedDevice(qubits=40)
    assert qubits(annealer) == {*working("pegasus", 40, frozenset()).qubits}
    smaller = annealer.model_copy(update={"qubits": 30})
    assert qubits(smaller) == {*working("pegasus", 30, frozenset()).qubits}
    assert smaller.description.qubits == 30
    lattice = EmulatedDevice(technology="superconducting", qubits=20)
    cut = lattice.model_copy(update={"out_of_service": frozenset({0})})
    assert qubits(lattice) - qubits(cut) == {0}


def qubits(device: EmulatedDevice) -> set[int]:
    topology = device.description.topology
    assert topology is not None
    return {*topology.qubits}
