"""The presolve: a dimod composite that reduces a problem before a sampler gets the rest.

With the same analysis of the problem, it also assesses the samples.
"""

from __future__ import annotations

import math
import time
from collections.abc import Hashable, Iterator, Mapping
from fractions import Fraction
from itertools import chain, islice, product
from typing import TypeAlias

import numpy as np
from dimod import BinaryQuadraticModel, SampleSet
from dimod.core.composite import ComposedSampler
from dimod.core.sampler import Sampler
from numpy.typing import NDArray

from sf_quantum.errors import InputError
from sf_quantum.files import JSON
from sf_quantum.samplers.energies import rounded, with_energies
from sf_quantum.samplers.parameters import derived, seeded
from sf_quantum.samplers.reduction import (
    Quadratic,
    Reduction,
    exclusions,
    focused,
    reduce,
)
from sf_quantum.samplers.states import (
    MAX_ENUMERATED,
    Bits,
    all_energies,
    bits_of,
    energies,
    is_exact,
    model,
    quadratic,
    sample_set,
    values,
)

# time limit of a part when the total has run out: easy parts are still solved
LEAST_SECONDS = 0.01
# why optima may be missing
MORE_OPTIMA = "there are more optima than num_reads"
ROUNDED = "the sampler solved a part whose biases were rounded to doubles"
# a reduction, and the parts to send: each part separately, or all parts together as one
_Attempt: TypeAlias = tuple[Reduction, list[list[int]]]


class Presolve(ComposedSampler):
    """Fixes the variables on which all optima agree, and samples the rest part by part.

    The rules, and why they preserve tied optima, are in
    :mod:`~sf_quantum.samplers.reduction`. Parts without a common interaction are
    sampled one at a time. Their reads are combined in the order of energy, with ties in random
    order, so that a good read of one part is not combined with a bad read of another.
    Variables that do not change the energy are drawn at random. All energies are computed
    exactly, and rounded to the closest doubles for the samples.

    If the child's property ``distinct`` is true, its samples are distinct states instead
    of reads: all combinations are formed, and ``info`` contains ``proven``, ``complete``,
    ``incomplete``, ``bound`` and ``gap``, as in :class:`exact <.exact.ExactSampler>`. If
    its property ``fractions`` is also true, parts with biases that doubles would round
    are passed to the child as models of dimod's type ``object`` with fractions. Otherwise,
    these biases are rounded, and proofs about such parts are not used.

    :param child: sampler of the parts
    """

    def __init__(self, child: Sampler) -> None:
        self._child = child

    @property
    def children(self) -> list[Sampler]:
        """The child, as a list."""
        return [self._child]

    @property
    def parameters(self) -> dict[str, list[str]]:
        """The child's parameters, and ``seed``, which also determines ties and draws."""
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

        ``info`` contains the entries on which all parts agree; the entries of the largest
        part that a later call can start from (the child's property ``carried``);
        ``presolve``, the numbers of variables fixed, drawn and in each part, and the number
        of the child's calls (``asked``); ``parts``, the entries that differ between
        calls; and the keys of :func:`verdict`.

        :param seed: seed of the first part, from which the seeds of other parts are derived
        :param parameters: the child's parameters
        """
        seed = self._seed(seed)
        check = getattr(self._child, "check_parameters", None)
        if callable(check):  # the child itself may never be called
            check(**parameters)
        problem = quadratic(bqm)
        reduction = reduce(problem)
        reduced, answers = self._sampled(bqm, problem, reduction, seed, parameters)
        if [len(part) for part in reduced.parts] == [len(problem.linear)]:
            samples = answers[0]
        else:
            combine = _combined_states if self._distinct else _combined_reads
            reads = parameters.get("num_reads", self._child.properties.get("num_reads"))
            reads = reads if isinstance(reads, int) else 1
            # a single answer may contain all parts
            per_part = answers if len(answers) > 1 else answers * len(reduced.parts)
            rows = combine(reduced, [*bqm.variables], per_part, reads, seed)
            samples = sample_set(rows, bqm, problem)
        rows = bits_of(samples, [*bqm.variables])
        exact = energies(problem, rows)
        # samplers and QPUs add doubles, in which large penalties hide small costs
        samples = with_energies(samples, np.array(values(problem, exact), np.float64))
        # only samplers of distinct states prove optima; claims of others are ignored
        proven = self._distinct and all(
            answer.info.get("proven") is True for answer in answers
        )
        info = self._info(problem, exact, reduced, answers, seed)
        reads_of = samples.record.num_occurrences
        info |= verdict(problem, reduction, rows, exact, reads_of, proven=proven)
        samples.info.clear()
        samples.info.update(info)
        return samples

    def _info(
        self,
        problem: Quadratic,
        exact: list[int],
        reduced: Reduction,
        answers: list[SampleSet],
        seed: int | None,
    ) -> dict[str, JSON]:
        """Make the ``info`` of the samples; see :meth:`sample`."""
        infos = [dict(answer.info) for answer in answers]
        sizes = [len(part) for part in reduced.parts]
        info: dict[str, JSON] = {}
        # a seed that cannot reproduce the reads is not reported
        if "seed" in self._child.parameters or not answers:
            info["seed"] = seed
        info |= _common(infos)
        if answers:
            largest = infos[sizes.index(max(sizes))] if len(infos) > 1 else infos[0]
            carried = self._child.properties.get("carried", [])
            info |= {name: largest[name] for name in carried if name in largest}
        if self._distinct:
            info |= _proof(problem, exact, answers, reduced)
        info["presolve"] = {
            "fixed": len(reduced.fixed),
            "drawn": len(reduced.free),
            "parts": [*sizes],
            "asked": len(answers),
        }
        if len(infos) > 1:
            info["parts"] = [
                {key: value for key, value in each.items() if info.get(key) != value}
                for each in infos
            ]
        return info

    def _seed(self, seed: int | None) -> int | None:
        return seeded(seed)

    @property
    def _distinct(self) -> bool:
        return self._child.properties.get("distinct") is True

    def _attempts(self, problem: Quadratic, reduction: Reduction) -> Iterator[_Attempt]:
        """Yield reductions and parts to sample; the next are used if the child rejects one."""
        yield reduction, reduction.parts

    def _sampled(
        self,
        bqm: BinaryQuadraticModel,
        problem: Quadratic,
        reduction: Reduction,
        seed: int | None,
        parameters: Mapping[str, JSON],
    ) -> tuple[Reduction, list[SampleSet]]:
        """Sample the parts; return the reduction that was sampled, and its samples."""
        refusals = []
        for reduced, parts in self._attempts(problem, reduction):
            try:
                answers = self._answers(bqm, reduced.left, parts, seed, parameters)
            except InputError as error:
                refusals.append(error)
            else:
                return reduced, answers
        raise refusals[-1]

    def _answers(
        self,
        bqm: BinaryQuadraticModel,
        left: Quadratic,
        parts: list[list[int]],
        seed: int | None,
        parameters: Mapping[str, JSON],
    ) -> list[SampleSet]:
        """Sample the parts one at a time."""
        labels = [*bqm.variables]
        answers = []
        # the time limit is for the whole problem
        limit = parameters.get("time_limit", self._child.properties.get("time_limit"))
        begin = time.monotonic()
        for number, part in enumerate(parts):
            part_parameters = dict(parameters)
            if seed is not None and "seed" in self._child.parameters:
                part_parameters["seed"] = derived(seed, number)
            if number and isinstance(limit, int | float):
                part_parameters["time_limit"] = max(
                    begin + limit - time.monotonic(), LEAST_SECONDS
                )
            # a part that is the whole problem is passed to the child unchanged
            whole = len(part) == len(labels)
            answer = (
                self._child.sample(bqm, **part_parameters)
                if whole
                else self._of_part(
                    left.part(part), [labels[i] for i in part], part_parameters
                )
            )
            if "time_limit" in answer.info:
                answer.info["time_limit"] = limit
            answers.append(answer)
        return answers

    def _of_part(
        self,
        part: Quadratic,
        labels: list[Hashable],
        parameters: Mapping[str, JSON],
    ) -> SampleSet:
        """Sample a part; a proof is dropped if biases were rounded."""
        fractions = self._child.properties.get("fractions") is True
        answer: SampleSet = self._child.sample(
            model(part, labels, exact=fractions), **parameters
        )
        if answer.info.get("proven") is True and not fractions and not is_exact(part):
            answer.info.update(proven=False, complete=False, incomplete=ROUNDED)
        return answer


class LeasedPresolve(Presolve):
    """The presolve for a leased QPU, which samples in any case.

    If the presolve decides all variables, the QPU still samples the largest component, which
    is halved until the QPU accepts it; the other variables are taken from an optimum.
    All parts are sent as one job, since every job costs set-up time; the parts share no
    interaction, so the reads of each part are valid separately. The parts are sent one at a
    time if the QPU rejects them together or the child's property ``together`` is false.
    Without a seed, no seed is sent, and the QPU draws its own: so a retry sends the same
    request, and finds its job.
    """

    def _seed(self, seed: int | None) -> int | None:
        return seed

    def _attempts(self, problem: Quadratic, reduction: Reduction) -> Iterator[_Attempt]:
        if reduction.parts:
            together = self._child.properties.get("together") is not False
            if len(reduction.parts) > 1 and together:
                yield reduction, [sorted(chain(*reduction.parts))]
            yield reduction, reduction.parts
            return
        size = len(problem.linear)
        while True:
            reduced = focused(problem, reduction, size)
            yield reduced, reduced.parts
            size = len(reduced.parts[0]) // 2
            if not size:
                return


def _combined_states(
    reduction: Reduction,
    labels: list[Hashable],
    answers: list[SampleSet],
    reads: int,
    _: int | None,
) -> Bits:
    """Form all combinations of the parts' distinct states, at most ``reads``."""
    blocks = {
        tuple(part): bits_of(answer, [labels[i] for i in part])
        for part, answer in zip(reduction.parts, answers, strict=True)
    }
    blocks |= {(i,): np.array([[0], [1]], np.int8) for i in reduction.free}
    chosen = [*islice(product(*map(range, map(len, blocks.values()))), reads)]
    rows = np.empty((len(chosen), len(labels)), np.int8)
    rows[:, [*reduction.fixed]] = [*reduction.fixed.values()]
    for number, (part, states) in enumerate(blocks.items()):
        rows[:, part] = states[[combination[number] for combination in chosen]]
    return rows


def _combined_reads(
    reduction: Reduction,
    labels: list[Hashable],
    answers: list[SampleSet],
    reads: int,
    seed: int | None,
) -> Bits:
    """Combine the parts' reads by energy; without parts, draw ``reads`` reads."""
    counts = (int(answer.record.num_occurrences.sum()) for answer in answers)
    reads = max(counts, default=reads)
    rows = np.empty((reads, len(labels)), np.int8)
    rows[:, [*reduction.fixed]] = [*reduction.fixed.values()]
    random = np.random.default_rng([seed or 0, len(answers)])
    drawn = random.integers(0, 2, (reads, len(reduction.free)), np.int8)
    rows[:, reduction.free] = drawn
    for part, answer in zip(reduction.parts, answers, strict=True):
        each = np.repeat(np.arange(len(answer)), answer.record.num_occurrences)
        states = bits_of(answer, [labels[i] for i in part])
        exact = energies(reduction.left.part(part), states)
        rank = {energy: place for place, energy in enumerate(sorted({*exact}))}
        states, levels = states[each], np.array([rank[e] for e in exact])[each]
        order = np.lexsort((random.random(len(levels)), levels))
        # a part with fewer reads than another part reuses some of its reads
        rows[:, part] = states[order[np.arange(reads) * len(order) // reads]]
    return rows


def verdict(
    problem: Quadratic,
    reduction: Reduction,
    rows: Bits,
    exact: list[int],
    occurrences: NDArray[np.int64],
    *,
    proven: bool,
) -> dict[str, JSON]:
    """Assess samples.

    :param rows: the samples, as bits
    :param exact: energy of each sample, in the problem's unit
    :param occurrences: number of reads of each sample
    :param proven: whether the sampler proves that its best sample is an optimum
    :returns: ``energy``, the lowest; ``feasible_share``, the share of reads without a
        pair of variables that exclude each other (``None`` if there is no such pair);
        ``optimum``, and ``optimal_share``, the share of optimal reads, both ``None`` unless
        the sampler proves the optimum, the presolve finds it, or all parts have at most 16
        variables and are enumerated
    """
    reads = int(occurrences.sum())
    lowest = min(exact, default=None)
    energy = None if lowest is None else problem.value(lowest)
    quality: dict[str, JSON] = {"energy": energy, "feasible_share": None}
    pairs = exclusions(problem)
    if pairs and reads:
        feasible = _feasible(rows, pairs)
        quality["feasible_share"] = int(occurrences[feasible].sum()) / reads
    if proven and lowest is not None:
        optimum = lowest
    elif all(len(part) <= MAX_ENUMERATED for part in reduction.parts):
        optimum = _optimum(problem, reduction)
    else:
        return quality | {"optimum": None, "optimal_share": None}
    optimal = np.array([energy == optimum for energy in exact], bool)
    share = int(occurrences[optimal].sum()) / reads if reads else None
    return quality | {"optimum": problem.value(optimum), "optimal_share": share}


def _feasible(rows: Bits, pairs: list[tuple[int, int]]) -> NDArray[np.bool_]:
    # computed as a matrix product, since there may be a million pairs
    matrix = np.zeros((rows.shape[1], rows.shape[1]), np.float32)
    matrix[tuple(np.array(pairs).T)] = 1
    both = (rows.astype(np.float32) @ matrix) * rows
    return np.asarray(~both.any(axis=1))


def _optimum(problem: Quadratic, reduction: Reduction) -> int:
    """Enumerate all states of each part, and return the lowest energy of the problem."""
    bits = {**reduction.fixed, **dict.fromkeys(reduction.free, 0)}
    for part in reduction.parts:
        best = int(all_energies(reduction.left.part(part)).argmin())
        bits |= {i: best >> number & 1 for number, i in enumerate(part)}
    return problem.energy([bits[i] for i in range(len(bits))])


def _common(infos: list[dict[str, JSON]]) -> dict[str, JSON]:
    first, *others = infos or [{}]
    # times are listed per part even if equal, since they add up
    return {
        key: value
        for key, value in first.items()
        if not others
        or (key != "timing" and all(other.get(key) == value for other in others))
    }


def _proof(
    problem: Quadratic,
    exact: list[int],
    answers: list[SampleSet],
    reduction: Reduction,
) -> dict[str, JSON]:
    """Combine the proofs of the parts to a proof for the whole problem.

    :param exact: energy of each sample, in the problem's unit
    """
    states = math.prod(len(answer) for answer in answers) << len(reduction.free)
    best = min(exact) * problem.unit + problem.offset
    gaps = [float(answer.info["gap"]) for answer in answers]
    finite = all(map(math.isfinite, gaps))
    gap = sum(map(Fraction, gaps), Fraction()) if finite else None
    reasons = [answer.info.get("incomplete") for answer in answers]
    if len(exact) < states:
        reasons.append(MORE_OPTIMA)
    complete = len(exact) == states and all(
        answer.info["complete"] for answer in answers
    )
    return {
        "proven": all(answer.info["proven"] for answer in answers),
        "complete": complete,
        "incomplete": None if complete else next(filter(None, reasons), None),
        "bound": -math.inf if gap is None else rounded(best - gap, -math.inf),
        "gap": math.inf if gap is None else rounded(gap, math.inf),
    }
