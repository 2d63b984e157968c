"""The description of a D-Wave solver, from its properties."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from sf_quantum.protocol.calibrations import CalibrationData
from sf_quantum.protocol.descriptions import Description, Timing, Topology
from sf_quantum.protocol.tasks import Kind
from sf_quantum.protocol.values import number
from sf_quantum.qpu.vendors.embedding import MICROSECONDS

if TYPE_CHECKING:
    from dwave.cloud.solver import StructuredSolver

# Properties that become the topology.
OF_THE_GRAPH = ("topology", "num_qubits", "qubits", "couplers")
# Maximum size of a graph that is generated: several times the size of the largest QPU.
LARGEST_SHAPE = 64
KINDS: tuple[Kind, ...] = ("problem",)


def description(solver: StructuredSolver) -> Description:
    """Describe a solver; the id of its working graph is the calibration's id.

    :raises ValueError: if the solver's properties are malformed
    """
    match properties := solver.properties:
        case {
            "topology": {"type": str(kind), "shape": [*shape]},
            "num_reads_range": [_, int(reads)],
            "num_qubits": int(labels),
        }:
            couplers = tuple(sorted(solver.undirected_edges))
            topology = Topology(kind, tuple(map(int, shape)), labels, couplers)
        case _:
            raise ValueError("the topology, or the range of reads, of its solver")
    return Description(
        "annealer",
        solver.num_active_qubits,
        KINDS,
        out_of_service=_fabric(kind, topology.shape) - solver.nodes,
        shots=reads,
        timing=timing(solver),
        calibration=CalibrationData(solver.graph_id),
        topology=topology,
        solver={
            key: value for key, value in properties.items() if key not in OF_THE_GRAPH
        },
    )


def timing(solver: StructuredSolver) -> Timing | None:
    """Read the timing of a problem that uses all qubits, if the solver publishes it."""
    qubits = solver.num_active_qubits
    try:
        one, two = (solver.estimate_qpu_access_time(qubits, reads) for reads in (1, 2))
    except (KeyError, ValueError):
        return None
    match solver.properties:
        case {
            "problem_timing_data": {
                "default_annealing_time": int() | float() as anneal,
                "qpu_delay_time_per_sample": int() | float() as delay,
            }
        }:
            shot, read = anneal + delay, two - one
        case _:
            return None
    # Rounded, since differences may be a little less than 0.
    times = (round(float(time), 6) for time in (one - read, shot, read - shot))
    seconds = [time / MICROSECONDS for time in times if number(time) is not None]
    return Timing(*seconds) if len(seconds) == 3 else None


@lru_cache(4)
def _fabric(kind: str, shape: tuple[int, ...]) -> frozenset[int]:
    """Return the qubits of a graph without defects; empty if the graph is unknown."""
    try:
        import dwave.graphs as graphs
    except ImportError:  # dwave-system is older than 1.36
        return frozenset()
    families = ("chimera", "pegasus", "zephyr")
    if kind not in families or max(shape, default=0) > LARGEST_SHAPE:
        return frozenset()
    return frozenset(getattr(graphs, f"{kind}_graph")(*shape))
