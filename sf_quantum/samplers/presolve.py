"""Any sampler, asked only what needs one: the composite that ``sfq solve`` puts on each."""

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

# for a part whose turn comes when the time is over: what is easy is solved all the same
LEAST_SECONDS = 0.01


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

        ``info`` has what the parts' samplers say alike; what of the largest part the child
        can start from a next time (its property ``carried``); in ``presolve`` the number of
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
        asked, answers = self._ask(bqm, problem, found, seed, parameters)
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
        # reads that no seed makes again have none
        if "seed" in self._child.parameters or not answers:
            samples.info["seed"] = seed
        samples.info.update(_alike(told) | self._carried(asked, told))
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
        # of the whole problem, if the child takes one
        limit = parameters.get("time_limit", self._child.properties.get("time_limit"))
        begin = time.monotonic()
        for number, part in enumerate(found.parts):
            own = dict(parameters)
            if seed is not None and "seed" in self._child.parameters:
                own["seed"] = derived(seed, number)
            if number and isinstance(limit, int | float):
                left = begin + limit - time.monotonic()
                own["time_limit"] = max(left, LEAST_SECONDS)
            # a part that is the whole goes through as it came
            whole = len(part) == len(labels)
            model = bqm if whole else _model(found.left, part, labels)
            answer = self._child.sample(model, **own)
            if "time_limit" in answer.info:
                answer.info["time_limit"] = limit
            answers.append(answer)
        return answers

    def _seed(self, seed: int | None) -> int | None:
        return seeded(seed)

    def _ask(
        self,
        bqm: BinaryQuadraticModel,
        problem: Quadratic,
        found: Reduction,
        seed: int | None,
        parameters: Mapping[str, JSON],
    ) -> tuple[Reduction, list[SampleSet]]:
        """Have the parts sampled, and say which these were in the end."""
        return found, self._answers(bqm, found, seed, parameters)

    def _carried(
        self, asked: Reduction, told: list[dict[str, JSON]]
    ) -> dict[str, JSON]:
        if not told:
            return {}
        sizes = [len(part) for part in asked.parts]
        largest = told[sizes.index(max(sizes))] if len(told) > 1 else told[0]
        known = self._child.properties.get("carried", [])
        return {name: largest[name] for name in known if name in largest}

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
            tie = found.left.tie or 1.0
            chosen = [_paired(block.energies / tie, reads, random) for block in blocks]
        rows = np.empty((len(chosen[0]), len(found.left.linear)), np.int8)
        for block, which in zip(blocks, chosen, strict=True):
            rows[:, block.part] = block.states[which]
        return rows


class Booked(Presolve):
    """The same for a QPU that is leased already, and has to be used for that.

    Where nothing is left of a problem its largest component is sent, since samples that
    are not the QPU's are not what its lease was for, and half of that, and so on, if the
    QPU refuses it; the rest is an optimum's. Parts go together, since each job on a QPU
    costs its setting-up: they share no interaction, so the reads of each are reads of it
    alone. They go apart if the QPU refuses them together, or its sampler's property ``together``
    is false. Without a seed the QPU draws its own, so that the same problem stays the same
    request, which a second try finds again.
    """

    def _seed(self, seed: int | None) -> int | None:
        return seed

    def _ask(
        self,
        bqm: BinaryQuadraticModel,
        problem: Quadratic,
        found: Reduction,
        seed: int | None,
        parameters: Mapping[str, JSON],
    ) -> tuple[Reduction, list[SampleSet]]:
        if not found.parts:
            return self._ask_again(bqm, problem, found, seed, parameters)
        together = self._child.properties.get("together") is not False
        if len(found.parts) > 1 and together:
            one = replace(found, parts=[sorted(chain(*found.parts))])
            with suppress(InputError):
                return found, self._answers(bqm, one, seed, parameters)
        return found, self._answers(bqm, found, seed, parameters)

    def _ask_again(
        self,
        bqm: BinaryQuadraticModel,
        problem: Quadratic,
        found: Reduction,
        seed: int | None,
        parameters: Mapping[str, JSON],
    ) -> tuple[Reduction, list[SampleSet]]:
        """Ask of the largest piece of what is decided that the QPU takes."""
        asked = focused(problem, found, len(problem.linear))
        while (size := len(asked.parts[0])) > 1:
            with suppress(InputError):
                return asked, self._answers(bqm, asked, seed, parameters)
            asked = focused(problem, found, size // 2)
        return asked, self._answers(bqm, asked, seed, parameters)


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
    levels = np.round(energies)
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
