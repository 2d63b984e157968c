"""The presolve: a composite that leaves a sampler only what needs sampling."""

from __future__ import annotations

import math
import time
from collections.abc import Hashable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain, islice, product

import numpy as np
from dimod import BinaryQuadraticModel, SampleSet
from dimod.core.composite import ComposedSampler
from dimod.core.sampler import Sampler
from numpy.typing import NDArray

from sf_quantum.errors import InputError
from sf_quantum.files import JSON
from sf_quantum.samplers.parameters import derived, seeded
from sf_quantum.samplers.reduction import Quadratic, Reduction, focused, reduce
from sf_quantum.samplers.states import Bits, as_binary, bits_of, quadratic, sample_set
from sf_quantum.samplers.verdict import verdict

# time limit of a part when the total has run out: easy parts are still solved
LEAST_SECONDS = 0.01


@dataclass(frozen=True)
class _PartReads:
    """The reads of one part.

    :param part: the variables, by position
    :param states: shape (reads, variables)
    :param energies: shape (reads,)
    """

    part: list[int]
    states: Bits
    energies: NDArray[np.float64]

    @classmethod
    def of(
        cls, part: list[int], model: BinaryQuadraticModel, answer: SampleSet
    ) -> _PartReads:
        """Extract a part from a sample set, one row per read."""
        each = np.repeat(np.arange(len(answer)), answer.record.num_occurrences)
        labels = [*model.variables]
        states = bits_of(answer, labels)[each]
        energies: NDArray[np.float64] = model.energies((states, labels))
        return cls(part, states, energies)


class Presolve(ComposedSampler):
    """Fix the variables on which all optima agree, and sample the rest part by part.

    The rules, and why they preserve tied optima, are in
    :mod:`~sf_quantum.samplers.reduction`. Parts without a common interaction are
    sampled one after the other. Their reads are combined by energy, the best with the
    best and ties in random order, so that a good read of one part is not lost to a bad
    read of another. Variables that do not change the energy are drawn at random. If the
    child's property ``distinct`` is true, its samples are distinct states instead of
    reads: all combinations are formed, and ``info`` has ``proven``, ``complete`` and
    ``bound`` as :class:`exact <.exact.ExactSampler>` has.

    :param child: the sampler of the parts
    """

    def __init__(self, child: Sampler) -> None:
        self._child = child

    @property
    def children(self) -> list[Sampler]:
        """The child, as a list."""
        return [self._child]

    @property
    def parameters(self) -> dict[str, list[str]]:
        """The child's parameters, and ``seed``, which also orders ties and draws."""
        return {"seed": [], **self._child.parameters}

    @property
    def properties(self) -> dict[str, JSON]:
        """The child's properties."""
        return {"child_properties": self._child.properties}

    def sample(
        self,
        bqm: BinaryQuadraticModel,
        *,
        seed: int | None = None,
        **parameters: JSON,
    ) -> SampleSet:
        """Sample the reduced problem, and extend the samples to the whole problem.

        ``info`` has the entries on which all parts agree; the entries of the largest
        part that a later call can start from (the child's property ``carried``);
        ``presolve``, the numbers of variables fixed, drawn and in each part, and of
        calls of the child (``asked``); ``parts``, the entries that differ between
        calls; and the keys of :func:`~sf_quantum.samplers.verdict.verdict`.

        :param seed: seed of the first part; those of the others are derived from it
        :param parameters: the child's parameters
        """
        seed = self._seed(seed)
        check = getattr(self._child, "check_parameters", None)
        if callable(check):  # the child itself may never be called
            check(**parameters)
        binary = as_binary(bqm)
        problem = quadratic(binary)
        reduction = reduce(problem)
        reduced, answers = self._sample_parts(bqm, problem, reduction, seed, parameters)
        if [len(part) for part in reduced.parts] == [len(problem.linear)]:
            samples = answers[0]
        else:
            labels = [*binary.variables]
            # a single answer may hold all parts
            per_part = answers if len(answers) > 1 else answers * len(reduced.parts)
            blocks = [
                _PartReads.of(part, _model(reduced.left, part, labels), answer)
                for part, answer in zip(reduced.parts, per_part, strict=True)
            ]
            rows = self._combined(reduced, blocks, self._reads(parameters), seed)
            samples = sample_set(rows, bqm)
        infos = [dict(answer.info) for answer in answers]
        samples.info.clear()
        # no seed is reported where it cannot reproduce the reads
        if "seed" in self._child.parameters or not answers:
            samples.info["seed"] = seed
        samples.info.update(_common(infos) | self._carried(reduced, infos))
        if self._distinct:
            samples.info.update(_proof(samples, answers, reduced))
        samples.info["presolve"] = {
            "fixed": len(reduced.fixed),
            "drawn": len(reduced.free),
            "parts": [len(part) for part in reduced.parts],
            "asked": len(answers),
        }
        if len(infos) > 1:
            samples.info["parts"] = [_differing(info, samples.info) for info in infos]
        proven = all(info.get("proven") is True for info in infos)
        samples.info.update(verdict(binary, problem, reduction, samples, proven=proven))
        return samples

    def _answers(
        self,
        bqm: BinaryQuadraticModel,
        reduction: Reduction,
        seed: int | None,
        parameters: Mapping[str, JSON],
    ) -> list[SampleSet]:
        labels = [*bqm.variables]
        answers = []
        # the time limit is for the whole problem
        limit = parameters.get("time_limit", self._child.properties.get("time_limit"))
        begin = time.monotonic()
        for number, part in enumerate(reduction.parts):
            own = dict(parameters)
            if seed is not None and "seed" in self._child.parameters:
                own["seed"] = derived(seed, number)
            if number and isinstance(limit, int | float):
                left = begin + limit - time.monotonic()
                own["time_limit"] = max(left, LEAST_SECONDS)
            # a part that is the whole problem is passed on unchanged
            whole = len(part) == len(labels)
            model = bqm if whole else _model(reduction.left, part, labels)
            answer = self._child.sample(model, **own)
            if "time_limit" in answer.info:
                answer.info["time_limit"] = limit
            answers.append(answer)
        return answers

    def _seed(self, seed: int | None) -> int | None:
        return seeded(seed)

    def _sample_parts(
        self,
        bqm: BinaryQuadraticModel,
        problem: Quadratic,
        reduction: Reduction,
        seed: int | None,
        parameters: Mapping[str, JSON],
    ) -> tuple[Reduction, list[SampleSet]]:
        """Sample the parts; return the reduction that was sampled, and the answers."""
        return reduction, self._answers(bqm, reduction, seed, parameters)

    def _carried(
        self, reduced: Reduction, infos: list[dict[str, JSON]]
    ) -> dict[str, JSON]:
        if not infos:
            return {}
        sizes = [len(part) for part in reduced.parts]
        largest = infos[sizes.index(max(sizes))] if len(infos) > 1 else infos[0]
        known = self._child.properties.get("carried", [])
        return {name: largest[name] for name in known if name in largest}

    @property
    def _distinct(self) -> bool:
        return self._child.properties.get("distinct") is True

    def _reads(self, parameters: Mapping[str, JSON]) -> int:
        reads = parameters.get("num_reads", self._child.properties.get("num_reads"))
        return reads if isinstance(reads, int) else 1

    def _combined(
        self,
        reduction: Reduction,
        blocks: list[_PartReads],
        reads: int,
        seed: int | None,
    ) -> Bits:
        random = np.random.default_rng([seed or 0, len(blocks)])
        fixed = np.array([[*reduction.fixed.values()]], np.int8)
        blocks = [*blocks, _PartReads([*reduction.fixed], fixed, np.zeros(1))]
        if self._distinct:
            values = np.array([[0], [1]], np.int8)
            blocks += [_PartReads([i], values, np.zeros(2)) for i in reduction.free]
            chosen = _combinations([len(block.energies) for block in blocks], reads)
        else:
            reads = max((len(block.energies) for block in blocks[:-1]), default=reads)
            drawn = random.integers(0, 2, (reads, len(reduction.free)), np.int8)
            blocks.append(
                _PartReads(reduction.free, drawn, np.arange(reads, dtype=float))
            )
            tie = reduction.left.tie or 1.0
            chosen = [
                _by_energy(block.energies / tie, reads, random) for block in blocks
            ]
        rows = np.empty((len(chosen[0]), len(reduction.left.linear)), np.int8)
        for block, which in zip(blocks, chosen, strict=True):
            rows[:, block.part] = block.states[which]
        return rows


class LeasedPresolve(Presolve):
    """The presolve for a leased QPU, which samples in any case.

    If the presolve leaves nothing, the QPU still samples the largest component or, as
    long as it refuses that, half of it; the other variables are taken from an optimum.
    All parts are sent as one job, since every job costs set-up time; they share no
    interaction, so each part's reads are valid on their own. They are sent one by one
    if the QPU refuses them together or the child's property ``together`` is false.
    Without a seed the QPU draws its own: the same problem is then the same request,
    which a retry finds again.
    """

    def _seed(self, seed: int | None) -> int | None:
        return seed

    def _sample_parts(
        self,
        bqm: BinaryQuadraticModel,
        problem: Quadratic,
        reduction: Reduction,
        seed: int | None,
        parameters: Mapping[str, JSON],
    ) -> tuple[Reduction, list[SampleSet]]:
        if not reduction.parts:
            return self._sample_opened(bqm, problem, reduction, seed, parameters)
        together = self._child.properties.get("together") is not False
        if len(reduction.parts) > 1 and together:
            joined = replace(reduction, parts=[sorted(chain(*reduction.parts))])
            with suppress(InputError):
                return reduction, self._answers(bqm, joined, seed, parameters)
        return reduction, self._answers(bqm, reduction, seed, parameters)

    def _sample_opened(
        self,
        bqm: BinaryQuadraticModel,
        problem: Quadratic,
        reduction: Reduction,
        seed: int | None,
        parameters: Mapping[str, JSON],
    ) -> tuple[Reduction, list[SampleSet]]:
        """Sample the largest decided piece that the QPU accepts."""
        reduced = focused(problem, reduction, len(problem.linear))
        while (size := len(reduced.parts[0])) > 1:
            with suppress(InputError):
                return reduced, self._answers(bqm, reduced, seed, parameters)
            reduced = focused(problem, reduction, size // 2)
        return reduced, self._answers(bqm, reduced, seed, parameters)


def _model(
    left: Quadratic, part: list[int], labels: list[Hashable]
) -> BinaryQuadraticModel:
    model = BinaryQuadraticModel("BINARY")
    model.add_linear_from((labels[i], left.linear[i]) for i in part)
    model.add_quadratic_from(
        (labels[i], labels[j], bias)
        for i in part
        for j, bias in left.pairs[i].items()
        if i < j
    )
    return model


def _combinations(sizes: list[int], most: int) -> list[NDArray[np.intp]]:
    chosen = [*islice(product(*(range(size) for size in sizes)), most)]
    return [*np.array(chosen, np.intp).reshape(len(chosen), len(sizes)).T]


def _by_energy(
    energies: NDArray[np.float64], reads: int, random: np.random.Generator
) -> NDArray[np.intp]:
    levels = np.round(energies)
    order = np.lexsort((random.random(len(levels)), levels))
    # a part with fewer reads than another reuses some
    return order[np.arange(reads) * len(order) // reads]


def _common(infos: list[dict[str, JSON]]) -> dict[str, JSON]:
    first = infos[0] if infos else {}
    # times add up, so equal times of two parts are still reported for each part
    return {
        key: value
        for key, value in first.items()
        if all(info.get(key) == value for info in infos)
        and (key != "timing" or len(infos) == 1)
    }


def _proof(
    samples: SampleSet, answers: list[SampleSet], reduction: Reduction
) -> dict[str, JSON]:
    """Combine the proofs of the parts into one for the whole problem."""
    states = math.prod(len(answer) for answer in answers) << len(reduction.free)
    unproven = sum(
        float(answer.record.energy.min()) - answer.info["bound"] for answer in answers
    )
    return {
        "proven": all(answer.info["proven"] for answer in answers),
        "complete": len(samples) == states
        and all(answer.info["complete"] for answer in answers),
        "bound": float(samples.record.energy.min()) - unproven,
    }


def _differing(info: dict[str, JSON], common: Mapping[str, JSON]) -> dict[str, JSON]:
    return {key: value for key, value in info.items() if common.get(key) != value}
