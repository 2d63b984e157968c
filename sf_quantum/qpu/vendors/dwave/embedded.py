"""The ``dimod`` sampler of an annealer: each problem is embedded in its graph."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING

from dimod import BinaryQuadraticModel, SampleSet
from dimod.core.sampler import Sampler

from sf_quantum.errors import InputError, QpuError
from sf_quantum.files import JSON
from sf_quantum.protocol.solver_parameters import check_ranges
from sf_quantum.qpu import with_qpu_name
from sf_quantum.qpu.vendors.dwave.client import DWaveClient
from sf_quantum.qpu.vendors.embedding import Embedded
from sf_quantum.samplers.parameters import check, check_number, seeded
from sf_quantum.text import one_line

if TYPE_CHECKING:
    from dwave.cloud.api.models import ProblemStatus


class DWaveEmbedded(Sampler):
    """Embeds each problem in the QPU's graph, and samples it there.

    Each variable becomes a chain of qubits, unless the variables already are coupled qubits.
    The chain strength is computed like Ocean's ``uniform_torque_compensation``; broken chains
    are resolved by majority vote. ``info`` contains the strength and the fraction of broken
    chains.

    :param lease: label of the problems
    """

    def __init__(self, client: DWaveClient, lease: str | None) -> None:
        self._client = client
        self._lease = lease

    @property
    def parameters(self) -> dict[str, list[str]]:
        names = "num_reads seed annealing_time chain_strength"
        return {name: [] for name in names.split()}

    @property
    def properties(self) -> dict[str, str]:
        return {"qpu": self._client.qpu, "type": "dwave"}

    @staticmethod
    def check_parameters(
        *,
        num_reads: JSON = None,
        annealing_time: JSON = None,
        chain_strength: JSON = None,
    ) -> None:
        """Reject parameters that no solver accepts; :func:`.seeded` checks the seed."""
        if num_reads is not None:
            check("num_reads", num_reads, 1)
        if annealing_time is not None:
            check_number("annealing_time", annealing_time, 0)
        if chain_strength is not None:
            check_number("chain_strength", chain_strength, 0)

    def sample(
        self,
        bqm: BinaryQuadraticModel,
        *,
        num_reads: int | None = None,
        seed: int | None = None,
        annealing_time: float | None = None,
        chain_strength: float | None = None,
    ) -> SampleSet:
        """Embed the problem, submit it and wait; an interrupt cancels the problem.

        :param num_reads: number of reads; the QPU's default is 1
        :param seed: seed of the search for an embedding, not of the QPU's samples;
            drawn and reported in ``info`` if not given
        :param annealing_time: time of a read in microseconds; by default the solver's default
        :param chain_strength: strength of the couplings in a chain, in the unit of the
            biases; computed if not given
        :raises InputError: if the QPU rejects the problem, or no embedding is found
        :raises QpuError: if the QPU fails or does not answer
        """
        self.check_parameters(
            num_reads=num_reads,
            annealing_time=annealing_time,
            chain_strength=chain_strength,
        )
        seed, begin, client = seeded(seed), time.monotonic(), self._client
        wanted = {"num_reads": num_reads, "annealing_time": annealing_time}
        given = {name: value for name, value in wanted.items() if value is not None}
        solver = client.graph()
        check_ranges(given, solver.properties)
        embedded = Embedded.of(bqm, solver, seed, chain_strength)
        try:
            problem = client.wait(client.submit(embedded, given, self._lease))
        except BaseException:
            # Without a label, this would also cancel the user's other problems.
            if self._lease:
                with suppress(QpuError, InputError):
                    client.cancel_labelled(self._lease)
            raise
        if problem.status.value != "COMPLETED":
            raise QpuError(f"QPU {client.qpu!r}: {ending(problem)}")
        with client.well_formed():
            samples = embedded.samples(problem)
        samples.info.update(with_qpu_name(client.qpu, samples.info))
        samples.info["timing"]["seconds"] = time.monotonic() - begin
        return samples


def ending(problem: ProblemStatus) -> str:
    """Describe how a problem without an answer ended."""
    reason = message(problem)
    if problem.status.value == "CANCELLED":
        return f"problem {problem.id} was cancelled{f': {reason}' if reason else ''}"
    return f"problem {problem.id} failed: {reason or 'no reason given'}"


def message(problem: ProblemStatus) -> str:
    """Return the service's message about the end of a problem, if there is one."""
    # The client's models do not declare this field.
    return one_line(str(getattr(problem, "error_message", None) or ""))[:300]
