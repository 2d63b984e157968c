"""Any sampler, asked only what needs one: the composite that ``sfq solve`` puts on each."""

from __future__ import annotations

import math
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
from sf_quantum.samplers.reduction import TIE, Quadratic, Reduction, reduce, untouched
from sf_quantum.samplers.states import Bits, as_binary, bits_of, quadratic, sample_set
from sf_quantum.samplers.verdict import verdict


@dataclass(frozen=True)
class _Block:
    """The answer to a part.

    :param part: its variables
    :param states: reads by variables
    :param energies: of the reads
    """

    part: list[int]
    states: Bits
    energies: NDArray[np.float64]

    @classmethod
    def of(
        cls, part: list[int], model: BinaryQuadraticModel, answer: SampleSet
    ) -> _Block:
        """Take the part out of an answer, sort its columns, and write every read out."""
        each = np.repeat(np.arange(len(answer)), answer.record.num_occurrences)
        labels = [*model.variables]
        states = bits_of(answer, labels)[each]
        energies: NDArray[np.float64] = model.energies((states, labels))
        return cls(part, states, energies)


class Presolve(ComposedSampler):
    """Fixes what every optimum agrees on, and has the rest sampled part by part.

    The rules, and why tied optima survive them, are in
    :mod:`~sf_quantum.samplers.reduction`. Parts that share no interaction are sampled
    one after the other. Reads of several parts are paired by their energy, the best with
    the best and equals at random, so no part waits for the luck of another. Variables
    that do not matter are drawn. A child whose property ``distinct`` is true answers with
    different states instead of reads; these are multiplied out, and its ``info`` has
    ``proven``, ``complete`` and ``bound`` as :class:`exact <.exact.ExactSampler>` has.

    :param child: what samples the parts
    """

    def __init__(self, child: Sampler) -> None:
        self._child = child

    @property
    def children(self) -> list[Sampler]:
        """The sampler inside."""
        return [self._child]

    @property
    def parameters(self) -> dict[str, list[str]]:
        """The child's, and ``seed``, which here pairs and draws as well."""
        return {"seed": [], **self._child.parameters}

    @property
    def properties(self) -> dict[str, JSON]:
        """The child's."""
        return {"child_properties": self._child.properties}

    def sample(
        self,
        bqm: BinaryQuadraticModel,
        *,
        seed: int | None = None,
        **parameters: JSON,
    ) -> SampleSet:
        """Sample what is left of the problem, and put the whole together again.

        ``info`` has what the parts' samplers say alike; in ``presolve`` the number of
        variables fixed, drawn and in each part, and how often the child was asked; of
        more than one answer what else it says, in ``parts``; and the keys of
        :func:`~sf_quantum.samplers.verdict.verdict`.

        :param seed: of the first part; the others' are derived from it
        :param parameters: the child's
        """
        seed = self._seed(seed)
        check = getattr(self._child, "check_parameters", None)
        if callable(check):  # the child itself may never be asked
            check(**parameters)
        binary = as_binary(bqm)
        problem = quadratic(binary)
        found = reduce(problem)
        asked = self._asked(problem, found)
        answers = self._answers(bqm, asked, seed, parameters)
        if [len(part) for part in asked.parts] == [len(problem.linear)]:
            samples = answers[0]
        else:
            labels = [*binary.variables]
            # one answer may be that of all parts
            of = answers if len(answers) > 1 else answers * len(asked.parts)
            blocks = [
                _Block.of(part, _model(asked.left, part, labels), answer)
                for part, answer in zip(asked.parts, of, strict=True)
            ]
            rows = self._put_together(asked, blocks, self._reads(parameters), seed)
            samples = sample_set(rows, bqm)
        told = [dict(answer.info) for answer in answers]
        samples.info.clear()
        samples.info.update({"seed": seed, **_alike(told)})
        if self._distinct:
            samples.info.update(_proof(samples, answers, asked))
        samples.info["presolve"] = {
            "fixed": len(asked.fixed),
            "drawn": len(asked.free),
            "parts": [len(part) for part in asked.parts],
            "asked": len(answers),
        }
        if len(told) > 1:
            samples.info["parts"] = [_others(info, samples.info) for info in told]
        proven = all(info.get("proven") is True for info in told)
        samples.info.update(verdict(binary, problem, found, samples, proven=proven))
        return samples

    def _answers(
        self,
        bqm: BinaryQuadraticModel,
        found: Reduction,
        seed: int | None,
        parameters: Mapping[str, JSON],
    ) -> list[SampleSet]:
        labels = [*bqm.variables]
        answers = []
        for number, part in enumerate(found.parts):
            own = dict(parameters)
            if seed is not None and "seed" in self._child.parameters:
                own["seed"] = derived(seed, number)
            # a part that is the whole goes through as it came
            whole = len(part) == len(labels)
            model = bqm if whole else _model(found.left, part, labels)
            answers.append(self._child.sample(model, **own))
        return answers

    def _seed(self, seed: int | None) -> int | None:
        return seeded(seed)

    def _asked(self, problem: Quadratic, found: Reduction) -> Reduction:
        return found

    @property
    def _distinct(self) -> bool:
        return self._child.properties.get("distinct") is True

    def _reads(self, parameters: Mapping[str, JSON]) -> int:
        reads = parameters.get("num_reads", self._child.properties.get("num_reads"))
        return reads if isinstance(reads, int) else 1

    def _put_together(
        self, found: Reduction, blocks: list[_Block], reads: int, seed: int | None
    ) -> Bits:
        random = np.random.default_rng([seed or 0, len(blocks)])
        fixed = np.array([[*found.fixed.values()]], np.int8)
        blocks = [*blocks, _Block([*found.fixed], fixed, np.zeros(1))]
        if self._distinct:
            values = np.array([[0], [1]], np.int8)
            blocks += [_Block([i], values, np.zeros(2)) for i in found.free]
            chosen = _multiplied([len(block.energies) for block in blocks], reads)
        else:
            reads = max((len(block.energies) for block in blocks[:-1]), default=reads)
            drawn = random.integers(0, 2, (reads, len(found.free)), np.int8)
            blocks.append(_Block(found.free, drawn, np.arange(reads, dtype=float)))
            chosen = [_paired(block.energies, reads, random) for block in blocks]
        rows = np.empty((len(chosen[0]), len(found.left.linear)), np.int8)
        for block, which in zip(blocks, chosen, strict=True):
            rows[:, block.part] = block.states[which]
        return rows


class Booked(Presolve):
    """The same for a QPU that is leased already, and has to be used for that.

    Where nothing is left of a problem it is sent whole, since samples that are not the
    QPU's are not what its lease was for. Parts go together, since each job on a QPU costs
    its setting-up: they share no interaction, so the reads of each are reads of it alone.
    They go apart if the QPU refuses them together, or its sampler's property ``together``
    is false. Without a seed the QPU draws its own, so that the same problem stays the same
    request, which a second try finds again.
    """

    def _seed(self, seed: int | None) -> int | None:
        return seed

    def _asked(self, problem: Quadratic, found: Reduction) -> Reduction:
        return found if found.parts else untouched(problem)

    def _answers(
        self,
        bqm: BinaryQuadraticModel,
        found: Reduction,
        seed: int | None,
        parameters: Mapping[str, JSON],
    ) -> list[SampleSet]:
        apart = super()._answers
        if len(found.parts) > 1 and self._child.properties.get("together") is not False:
            one = replace(found, parts=[sorted(chain(*found.parts))])
            with suppress(InputError):
                return apart(bqm, one, seed, parameters)
        return apart(bqm, found, seed, parameters)


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


def _multiplied(sizes: list[int], most: int) -> list[NDArray[np.intp]]:
    chosen = [*islice(product(*(range(size) for size in sizes)), most)]
    return [*np.array(chosen, np.intp).reshape(len(chosen), len(sizes)).T]


def _paired(
    energies: NDArray[np.float64], reads: int, random: np.random.Generator
) -> NDArray[np.intp]:
    scale = float(np.abs(energies).max(initial=0.0)) or 1.0
    levels = np.round(energies / (TIE * scale))
    order = np.lexsort((random.random(len(levels)), levels))
    # of a part that answered with fewer reads than another, some are used again
    return order[np.arange(reads) * len(order) // reads]


def _alike(told: list[dict[str, JSON]]) -> dict[str, JSON]:
    first = told[0] if told else {}
    # times add up, so parts that took equally long still tell each their own
    return {
        key: value
        for key, value in first.items()
        if all(info.get(key) == value for info in told)
        and (key != "timing" or len(told) == 1)
    }


def _proof(
    samples: SampleSet, answers: list[SampleSet], found: Reduction
) -> dict[str, JSON]:
    """What the parts' proofs prove of the whole."""
    states = math.prod(len(answer) for answer in answers) << len(found.free)
    unproven = sum(
        float(answer.record.energy.min()) - answer.info["bound"] for answer in answers
    )
    return {
        "proven": all(answer.info["proven"] for answer in answers),
        "complete": len(samples) == states
        and all(answer.info["complete"] for answer in answers),
        "bound": float(samples.record.energy.min()) - unproven,
    }


def _others(info: dict[str, JSON], common: Mapping[str, JSON]) -> dict[str, JSON]:
    return {key: value for key, value in info.items() if common.get(key) != value}
