"""Problems on the qubits of an annealer: their embedding, encoding, and decoded answers.

minorminer, which searches for an embedding, holds Python's global lock for up to minutes.
So it runs in its own process, while the other threads of this process continue.
"""

from __future__ import annotations

import hashlib
import json
import resource
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Self, TypeAlias

import numpy as np
from dimod import SPIN, BinaryQuadraticModel, SampleSet

from sf_quantum.errors import InputError
from sf_quantum.protocol.values import number
from sf_quantum.samplers.defaults import SEEDS
from sf_quantum.samplers.energies import difference, exact_energies, recompute
from sf_quantum.text import one_line

if TYPE_CHECKING:
    from dwave.cloud.api.models import ProblemAnswer, ProblemStatusMaybeWithAnswer
    from dwave.cloud.coders import EncodedQP
    from dwave.cloud.solver import StructuredSolver
    from dwave.embedding import EmbeddedStructure

Pairs: TypeAlias = Sequence[tuple[int, int]]
# Time after which the search ends with the best embedding so far.
SEARCH_SECONDS = 60
# Time for starting the process on a busy machine.
SPARE_SECONDS = 60
# number of searches whose results are cached; each needs half a megabyte for the graph
KEPT = 32
# Address space of a search; 1,500 variables with 4,500 interactions take 240 MB of
# memory.
MOST_BYTES = 4 * 2**30
MICROSECONDS = 1e6


class WrongEmbedding(ValueError):
    """The answer is for the same problem in another embedding."""


@dataclass(frozen=True)
class Embedded:
    """A problem on the qubits of a solver.

    :param source: the problem
    :param target: the same problem over qubits; its variables are numbers of qubits
    :param chains: the qubits of each variable; ``None`` if ``source`` is over qubits
    :param seed: seed of the search for the chains
    """

    source: BinaryQuadraticModel
    target: BinaryQuadraticModel
    chains: EmbeddedStructure | None
    solver: StructuredSolver
    seed: int | None

    @classmethod
    def of(
        cls,
        bqm: BinaryQuadraticModel,
        solver: StructuredSolver,
        seed: int | None = None,
        chain_strength: float | None = None,
    ) -> Self:
        """Embed a problem; the same arguments give the same embedding, within the time limit.

        :param seed: seed of the search; by default it is derived from the problem's
            interactions, so problems with the same interactions have the same embedding
        :raises InputError: if no embedding is found
        """
        if solver.check_problem(bqm.linear, bqm.quadratic):
            return cls(bqm, bqm, None, solver, seed)
        from dwave.embedding import EmbeddedStructure

        numbers = {variable: number for number, variable in enumerate(bqm.variables)}
        pairs = [(numbers[one], numbers[other]) for one, other in bqm.quadratic]
        # a variable without interactions also needs a qubit
        pairs += [(number, number) for number in numbers.values()]
        couplers = sorted(solver.undirected_edges)
        if seed is None:
            digest = hashlib.sha256(repr(pairs).encode()).digest()
            seed = int.from_bytes(digest[:4], "big") % SEEDS
        fits = len(bqm.quadratic) <= len(couplers)
        if not fits or not (qubits := search(pairs, couplers, seed)):
            count = f"{len(numbers)} variables"
            raise InputError(f"solver {solver.name!r}: {count}: no embedding found")
        chains = EmbeddedStructure(couplers, dict(zip(numbers, qubits, strict=True)))
        target = chains.embed_bqm(
            bqm, chain_strength=chain_strength, smear_vartype=SPIN
        )
        return cls(bqm, target, chains, solver, seed)

    @property
    def type(self) -> str:
        """SAPI's name for the type of the problem."""
        return "ising" if self.target.vartype is SPIN else "qubo"

    def data(self) -> EncodedQP:
        """Encode the problem for the solver."""
        from dwave.cloud.coders import encode_problem_as_qp

        return encode_problem_as_qp(
            self.solver,
            dict(self.target.linear),
            dict(self.target.quadratic),
            self.target.offset,
            undirected_biases=True,
        )

    def samples(self, problem: ProblemStatusMaybeWithAnswer) -> SampleSet:
        """Decode and unembed an answer; energies are computed from ``source``.

        :raises WrongEmbedding: if the answer is for a problem over other qubits
        :raises ValueError: if the answer is malformed
        """
        if problem.answer is None:
            raise ValueError("no answer")
        samples, largest = self._decoded(problem.answer)
        if not samples.record.num_occurrences.sum():
            raise ValueError("an answer without reads")
        # All values have JSON's types, not types of NumPy or of the client.
        summary = {
            "reads": int(samples.record.num_occurrences.sum()),
            "job": problem.id,
            "timing": {"qpu_seconds": access_seconds(problem.answer.timing)},
            "qpu": problem.solver.name,
            "technology": "annealer",
            "calibration": {"id": self.solver.graph_id},
            "qubits": len(self.target.variables),
            "sampler": "dwave",
            "seed": self.seed,
        }
        if largest:
            summary["energies_recomputed"] = {"largest_difference": largest}
        if self.chains is not None:
            samples = self._unembedded(samples)
            weights = samples.record.num_occurrences
            broken = (samples.record.chain_break_fraction * weights).sum()
            summary |= {
                # None if no variable needs a second qubit
                "chain_strength": self.chains.chain_strength,
                "chain_break_method": "majority_vote",
                "chain_break_fraction": float(broken / weights.sum()),
                "longest_chain": max(map(len, self.chains.values())),
            }
        samples.info.clear()
        samples.info.update(summary)
        return samples

    def _decoded(self, answer: ProblemAnswer) -> tuple[SampleSet, float]:
        """Return the samples of the qubits, and the largest error of the answer's energies."""
        from dwave.cloud.coders import decode_qp_numpy

        # checked first, since the decoder makes an array of this width
        if not 0 < answer.num_variables <= self.solver.num_qubits:
            raise ValueError(f"num_variables: {answer.num_variables}")
        message = {"type": self.type, "answer": answer.model_dump()}
        decoded = decode_qp_numpy(message)
        qubits = decoded["active_variables"]
        if {*qubits.tolist()} != {*self.target.variables}:
            raise WrongEmbedding("the answer is to a problem over other qubits")
        if not len(decoded["solutions"]):
            raise ValueError("no samples")
        rows = decoded["solutions"][:, qubits]
        read: SampleSet = SampleSet.from_samples(  # type: ignore[no-untyped-call]
            (rows, qubits.tolist()),
            self.target.vartype,
            energy=exact_energies(self.target, rows, qubits.tolist()),
            num_occurrences=decoded["num_occurrences"],
        )
        energies = np.asarray(decoded["energies"], dtype=np.float64)
        if (
            energies.shape != read.record.energy.shape
            or not np.isfinite(energies).all()
        ):
            raise ValueError("its energies are not a number for each sample")
        return read, difference(self.target, energies, read.record.energy)

    def _unembedded(self, samples: SampleSet) -> SampleSet:
        from dwave.embedding import unembed_sampleset

        unembedded: SampleSet = unembed_sampleset(
            samples, self.chains, self.source, chain_break_fraction=True
        )
        # majority votes may change states, and dimod's sums of doubles are rounded
        return recompute(unembedded, self.source)


def access_seconds(timing: Mapping[str, float] | None) -> float | None:
    """Read the QPU time that an answer reports."""
    micros = number((timing or {}).get("qpu_access_time", 0.0))
    return None if micros is None else micros / MICROSECONDS


def search(source: Pairs, target: Pairs, seed: int) -> list[list[int]]:
    """Search for an embedding.

    :param source: interactions of the variables 0 to n - 1, and each variable with itself
    :param target: couplers of the qubits
    :returns: the qubits of each variable; empty if no embedding is found
    :raises InputError: if the search takes too long, or needs too much memory
    """
    return _search(json.dumps([source, target, seed]))


@lru_cache(KEPT)
def _search(given: str) -> list[list[int]]:
    """Search for an embedding in a separate process."""
    try:
        done = subprocess.run(
            [sys.executable, "-m", __name__],
            input=given,
            capture_output=True,
            text=True,
            timeout=SEARCH_SECONDS + SPARE_SECONDS,
            check=True,
        )
    except subprocess.TimeoutExpired as error:
        text = f"no embedding found within {SEARCH_SECONDS + SPARE_SECONDS} s"
        raise InputError(text) from error
    except subprocess.CalledProcessError as error:
        why = one_line(error.stderr[-200:])
        raise InputError(f"the search for an embedding failed: {why}") from error
    chains: list[list[int]] = json.loads(done.stdout)
    return chains


def main() -> None:
    """Search once: arguments on standard input, the embedding on standard output."""
    import minorminer

    # With the limits, the process ends even if its parent has died.
    resource.setrlimit(resource.RLIMIT_CPU, (2 * SEARCH_SECONDS, 2 * SEARCH_SECONDS))
    resource.setrlimit(resource.RLIMIT_AS, (MOST_BYTES, MOST_BYTES))
    source, target, seed = json.load(sys.stdin)
    chains = minorminer.find_embedding(
        source, target, random_seed=seed, timeout=SEARCH_SECONDS
    )
    json.dump([chains[variable] for variable in sorted(chains)], sys.stdout)


if __name__ == "__main__":
    main()
