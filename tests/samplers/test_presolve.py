"""The composite around every sampler."""

from __future__ import annotations

from itertools import product

import pytest
from dimod import SPIN, BinaryQuadraticModel, SampleSet
from dimod.core.sampler import Sampler
from dimod.testing import assert_composite_api, assert_sampler_api

from sf_quantum.errors import InputError
from sf_quantum.files import JSON
from sf_quantum.samplers.exact import ExactSampler
from sf_quantum.samplers.neal import NealSampler
from sf_quantum.samplers.presolve import LEAST_SECONDS, LeasedPresolve, Presolve
from sf_quantum.samplers.states import bits_of
from sf_quantum.testing.samplers import problem


def rings(count: int, *, offset: float = 0.0) -> BinaryQuadraticModel:
    """Rings of four candidates each; every ring has two optima, of energy -2."""
    model = BinaryQuadraticModel("BINARY")
    for number in range(count):
        labels = [f"{label}{number}" for label in "abdc"]
        model.add_linear_from((label, -1.0) for label in sorted(labels))
        around = zip(labels, labels[1:] + labels[:1], strict=True)
        model.add_quadratic_from((*pair, 2.0) for pair in around)
    model.offset = offset
    return model


class Recording(NealSampler):
    """neal, and what it was asked."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[tuple[list[str], int | None]] = []

    def sample(
        self,
        bqm: BinaryQuadraticModel,
        *,
        num_reads: int = 10,
        seed: int | None = None,
        num_sweeps: int = 100,
    ) -> SampleSet:
        """See the base."""
        self.asked.append(([str(label) for label in bqm.variables], seed))
        return super().sample(
            bqm, num_reads=num_reads, seed=seed, num_sweeps=num_sweeps
        )


def test_it_is_a_composite() -> None:
    assert_sampler_api(Presolve(NealSampler()))  # type: ignore[no-untyped-call]
    assert_composite_api(Presolve(NealSampler()))  # type: ignore[no-untyped-call]


def test_nothing_to_do_is_the_sampler_alone() -> None:
    alone = NealSampler().sample(problem(), num_reads=30, seed=5)
    behind = Presolve(NealSampler()).sample(problem(), num_reads=30, seed=5)
    assert (behind.record == alone.record).all()
    assert behind.variables == alone.variables
    assert behind.info["sampler"] == "neal"
    assert behind.info["presolve"] == {"fixed": 0, "drawn": 0, "parts": [4], "asked": 1}


def test_parts_are_asked_apart_and_their_best_come_together() -> None:
    sampler = Recording()
    bqm = rings(6, offset=2.5)
    bqm.add_linear("alone", -1.0)
    bqm.add_linear("any", 0.0)
    samples = Presolve(sampler).sample(bqm, num_reads=200, seed=4)
    assert [sorted(labels) for labels, _ in sampler.asked] == [
        [f"{label}{number}" for label in "abcd"] for number in range(6)
    ]
    seeds = [seed for _, seed in sampler.asked]
    assert seeds[0] == 4
    assert len({*seeds}) == 6
    assert samples.info["presolve"] == {
        **{"fixed": 1, "drawn": 1},
        **{"parts": [4] * 6, "asked": 6},
    }
    assert len(samples) == 200
    assert samples.first.energy == pytest.approx(bqm.energy(samples.first.sample))
    assert samples.info["optimum"] == pytest.approx(-2.0 * 6 - 1.0 + 2.5)
    # neal reads a ring's optimum nearly always, and so must six at once be
    assert samples.info["optimal_share"] > 0.9
    assert 0.2 < bits_of(samples, ["any"]).mean() < 0.8
    assert Presolve(NealSampler()).sample(bqm, num_reads=200, seed=4) == samples


def test_what_differs_is_told_by_part() -> None:
    samples = Presolve(NealSampler()).sample(rings(2), num_reads=5, seed=0)
    assert samples.info["num_sweeps"] == 100
    assert [*samples.info["parts"][0]] == []
    assert [*samples.info["parts"][1]] == ["seed"]


def test_tied_optima_of_parts_are_multiplied_out() -> None:
    samples = Presolve(ExactSampler()).sample(rings(3), num_reads=100, seed=1)
    assert len({tuple(row) for row in samples.record.sample.tolist()}) == 8
    assert samples.info["complete"] is True
    assert samples.info["proven"] is True
    assert samples.info["bound"] == pytest.approx(-6.0)
    fewer = Presolve(ExactSampler()).sample(rings(3), num_reads=5, seed=1)
    assert len(fewer) == 5
    assert fewer.info["complete"] is False


def test_spins_are_answered_in_spins() -> None:
    bqm = rings(2).change_vartype(SPIN, inplace=False)
    samples = Presolve(NealSampler()).sample(bqm, num_reads=20, seed=1)
    assert samples.vartype is SPIN
    assert samples.first.energy == pytest.approx(-4.0)


def decided() -> BinaryQuadraticModel:
    return BinaryQuadraticModel({"a": -2.0, "b": -1.0}, {"ab": 3.0}, 0.0, "BINARY")


def test_what_is_decided_asks_nobody() -> None:
    sampler = Recording()
    samples = Presolve(sampler).sample(decided(), num_reads=7, seed=1)
    assert sampler.asked == []
    assert [dict(row) for row in samples.samples()] == [{"a": 1, "b": 0}] * 7  # type: ignore[no-untyped-call]
    assert samples.info["optimal_share"] == 1.0
    assert samples.info["presolve"]["asked"] == 0


def test_a_qpu_that_is_booked_is_asked_all_the_same() -> None:
    sampler = Recording()
    samples = LeasedPresolve(sampler).sample(decided(), num_reads=7)
    # no seed: the same request again, for whoever looks for the job of the first try
    assert sampler.asked == [(["a", "b"], None)]
    assert samples.info["presolve"] == {
        "fixed": 0,
        "drawn": 0,
        "parts": [2],
        "asked": 1,
    }


def test_on_a_booked_qpu_parts_go_together() -> None:
    sampler, bqm = Recording(), rings(5, offset=2.5)
    bqm.add_linear("alone", -1.0)
    samples = LeasedPresolve(sampler).sample(bqm, num_reads=300, seed=4)
    ((labels, seed),) = sampler.asked
    assert (len(labels), "alone" in labels, seed) == (20, False, 4)
    assert samples.info["presolve"] == {
        **{"fixed": 1, "drawn": 0},
        **{"parts": [4] * 5, "asked": 1},
    }
    assert "parts" not in samples.info
    for row in samples.data(["sample", "energy"]):  # type: ignore[no-untyped-call]
        assert row.energy == pytest.approx(bqm.energy(row.sample))
    # neal reads a ring's optimum nearly always, and so must five at once be
    assert samples.info["optimal_share"] > 0.9
    best = samples.record.sample[samples.record.energy < -8.5 + 1e-9]
    assert len({tuple(row) for row in best.tolist()}) == 2**5


class Small(Recording):
    """One that takes four variables at once."""

    def sample(
        self,
        bqm: BinaryQuadraticModel,
        *,
        num_reads: int = 10,
        seed: int | None = None,
        num_sweeps: int = 100,
    ) -> SampleSet:
        """See the base."""
        if len(bqm.variables) > 4:
            raise InputError("too many variables")
        return super().sample(
            bqm, num_reads=num_reads, seed=seed, num_sweeps=num_sweeps
        )


class Apart(Recording):
    """One that does better with few variables."""

    @property
    def properties(self) -> dict[str, JSON]:
        """See the base."""
        return {**super().properties, "together": False}


@pytest.mark.parametrize("kind", [Small, Apart])
def test_what_a_qpu_does_not_take_together_goes_apart(kind: type[Recording]) -> None:
    sampler = kind()
    samples = LeasedPresolve(sampler).sample(rings(2), num_reads=7, seed=3)
    assert [len(labels) for labels, _ in sampler.asked] == [4, 4]
    assert samples.info["presolve"]["asked"] == 2


def chains(*sizes: int) -> BinaryQuadraticModel:
    """Paths of candidates; from the second on each second is in every optimum."""
    model = BinaryQuadraticModel("BINARY")
    for number, size in enumerate(sizes):
        for place in range(size):
            model.add_linear(f"{number}-{place}", -8.0 if place % 2 else -1.0)
        model.add_quadratic_from(
            (f"{number}-{place}", f"{number}-{place + 1}", 3.0)
            for place in range(size - 1)
        )
    return model


class Narrow(Recording):
    """A QPU of three qubits."""

    def sample(
        self,
        bqm: BinaryQuadraticModel,
        *,
        num_reads: int = 10,
        seed: int | None = None,
        num_sweeps: int = 100,
    ) -> SampleSet:
        """See the base."""
        samples = super().sample(
            bqm, num_reads=num_reads, seed=seed, num_sweeps=num_sweeps
        )
        if len(bqm.variables) > 3:
            raise InputError(f"{len(bqm.variables)} variables")
        return samples


def test_of_what_is_decided_a_qpu_gets_as_much_as_it_takes() -> None:
    bqm = chains(1, 9, 13, 2)
    bqm.add_linear("any", 0.0)
    wide, narrow = Recording(), Narrow()
    found = [
        LeasedPresolve(qpu).sample(bqm, num_reads=50, seed=1) for qpu in (wide, narrow)
    ]
    # the largest component, of thirteen; and then half of what was refused
    assert [len(labels) for labels, _ in wide.asked] == [13]
    assert [len(labels) for labels, _ in narrow.asked] == [13, 6, 3]
    for samples in found:
        assert len(samples) == 50
        assert samples.record.energy == pytest.approx(bqm.energies(samples))
        assert samples.first.energy == samples.info["optimum"] == -1 - 32 - 48 - 8
        assert 0 < bits_of(samples, ["any"]).mean() < 1
    assert found[1].info["presolve"] == {
        **{"fixed": 22, "drawn": 1},
        **{"parts": [3], "asked": 1},
    }


def test_what_a_qpu_takes_at_no_size_is_its_refusal() -> None:
    with pytest.raises(InputError, match="num_sweeps: 0 is out of range"):
        LeasedPresolve(Narrow()).sample(chains(9), num_reads=5, num_sweeps=0)
    empty = LeasedPresolve(Narrow()).sample(BinaryQuadraticModel("BINARY"), num_reads=5)
    assert empty.info["optimum"] == 0.0


class Seedless(Sampler):
    """A machine whose reads no seed makes again."""

    @property
    def parameters(self) -> dict[str, list[str]]:
        """See the base."""
        return {"num_reads": []}

    @property
    def properties(self) -> dict[str, JSON]:
        """See the base."""
        return {}

    def sample(self, bqm: BinaryQuadraticModel, *, num_reads: int = 1) -> SampleSet:
        """See the base."""
        return NealSampler().sample(bqm, num_reads=num_reads)


@pytest.mark.parametrize("kind", [Presolve, LeasedPresolve])
def test_of_a_machine_without_a_seed_none_is_told(kind: type[Presolve]) -> None:
    for bqm in (rings(1), rings(2)):
        info = kind(Seedless()).sample(bqm, num_reads=5, seed=7).info
        assert info.get("seed") != 7
    # here nobody was asked, and the seed draws what may be either
    bqm = BinaryQuadraticModel({"a": 0.0}, {}, 0.0, "BINARY")
    assert Presolve(Seedless()).sample(bqm, num_reads=5, seed=7).info["seed"] == 7


class Carrying(Recording):
    """neal, which tells what it could start from."""

    @property
    def properties(self) -> dict[str, JSON]:
        """See the base."""
        return {**super().properties, "carried": ["size"]}

    def sample(
        self,
        bqm: BinaryQuadraticModel,
        *,
        num_reads: int = 10,
        seed: int | None = None,
        num_sweeps: int = 100,
    ) -> SampleSet:
        """See the base."""
        samples = super().sample(
            bqm, num_reads=num_reads, seed=seed, num_sweeps=num_sweeps
        )
        samples.info["size"] = len(bqm.variables)
        return samples


def test_what_to_start_from_is_that_of_the_largest_part() -> None:
    bqm = rings(3)
    # of the second ring with another candidate there are five
    bqm.add_linear("e1", -1.0)
    bqm.add_quadratic_from([("e1", "a1", 2.0), ("e1", "c1", 2.0)])
    found = Presolve(Carrying()).sample(bqm, num_reads=5, seed=1)
    sizes = found.info["presolve"]["parts"]
    assert len({*sizes}) > 1
    assert found.info["size"] == max(sizes)
    assert LeasedPresolve(Carrying()).sample(bqm, num_reads=5).info["size"] == sum(
        sizes
    )


class Timed(ExactSampler):
    """exact, and how long it was given."""

    def __init__(self) -> None:
        self.given: list[float] = []

    def sample(
        self,
        bqm: BinaryQuadraticModel,
        *,
        num_reads: int = 1000,
        seed: int | None = None,
        time_limit: float = 30.0,
    ) -> SampleSet:
        """See the base."""
        self.given.append(time_limit)
        return super().sample(
            bqm, num_reads=num_reads, seed=seed, time_limit=time_limit
        )


def test_the_time_is_that_of_the_whole_problem() -> None:
    timed = Timed()
    samples = Presolve(timed).sample(rings(3), seed=1, time_limit=20.0)
    first, second, third = timed.given
    assert first == 20.0 > second > third > 0
    assert samples.info["time_limit"] == 20.0
    timed = Timed()
    samples = Presolve(timed).sample(rings(3), seed=1)
    assert timed.given[0] == samples.info["time_limit"] == 30.0 > timed.given[1]
    # of no time at all something is left for each part
    timed = Timed()
    Presolve(timed).sample(rings(3), seed=1, time_limit=1e-6)
    assert timed.given == [1e-6, LEAST_SECONDS, LEAST_SECONDS]


def test_what_is_decided_is_checked_all_the_same() -> None:
    with pytest.raises(InputError, match="num_sweeps: 'x'"):
        Presolve(NealSampler()).sample(decided(), num_sweeps="x")
    with pytest.raises(InputError, match="num_reads: 0"):
        LeasedPresolve(NealSampler()).sample(decided(), num_reads=0)


class Fixed(Seedless):
    """A sampler without a seed that answers with occurrences."""

    def sample(self, bqm: BinaryQuadraticModel, *, num_reads: int = 1) -> SampleSet:
        """One state, often, and one once."""
        best = ExactSampler().sample(bqm, seed=1, num_reads=1).record.sample[0]
        rows = [best, [0] * len(best)]
        return SampleSet.from_samples_bqm(  # type: ignore[no-untyped-call,no-any-return]
            (rows, [*bqm.variables]), bqm, num_occurrences=[num_reads - 1, 1]
        )


def test_occurrences_are_reads() -> None:
    samples = Presolve(Fixed()).sample(rings(2), num_reads=10, seed=1)
    assert len(samples) == 10
    assert sorted(samples.record.energy) == [-4.0] * 9 + [0.0]


def test_a_penalty_does_not_make_every_read_optimal() -> None:
    class Every(Fixed):
        """Every state once."""

        def sample(self, bqm: BinaryQuadraticModel, *, num_reads: int = 1) -> SampleSet:
            """See the base."""
            rows = [*product((0, 1), repeat=len(bqm.variables))]
            return SampleSet.from_samples_bqm((rows, [*bqm.variables]), bqm)  # type: ignore[no-untyped-call,no-any-return]

    # of each ring one pair is lighter
    bqm = rings(2)
    bqm.add_linear_from((label, 0.25) for label in ("b0", "c0", "b1", "c1"))
    bqm.add_quadratic_from((i, j, 1e9) for i, j in [*bqm.quadratic])
    samples = LeasedPresolve(Every()).sample(bqm, num_reads=256)
    info = samples.info
    assert info["optimum"] == samples.first.energy == -4.0
    # one of sixteen states of each ring, the best paired with the best
    assert info["optimal_share"] == 1 / 16


def test_reads_of_parts_are_paired_by_energy() -> None:
    class Two(Fixed):
        """A bad read, and of the rest each second is the better."""

        def sample(self, bqm: BinaryQuadraticModel, *, num_reads: int = 1) -> SampleSet:
            """See the base."""
            best = ExactSampler().sample(bqm, seed=1, num_reads=1).record.sample[0]
            worse = best.copy()
            worse[best.argmax()] = 0
            rows = [[1] * len(best), *[best, worse] * (num_reads // 2)]
            return SampleSet.from_samples_bqm((rows, [*bqm.variables]), bqm)  # type: ignore[no-untyped-call,no-any-return]

    bqm = rings(2)
    bqm.add_quadratic_from((i, j, 1e10) for i, j in [*bqm.quadratic])
    samples = Presolve(Two()).sample(bqm, num_reads=40, seed=1)
    assert samples.info["optimal_share"] == 20 / 41


def test_infeasible_reads_are_counted() -> None:
    class All(Fixed):
        """Every variable is 1."""

        def sample(self, bqm: BinaryQuadraticModel, *, num_reads: int = 1) -> SampleSet:
            """See the base."""
            rows = [[1] * len(bqm.variables)] * num_reads
            return SampleSet.from_samples_bqm((rows, [*bqm.variables]), bqm)  # type: ignore[no-untyped-call,no-any-return]

    info = Presolve(All()).sample(rings(2), num_reads=4).info
    assert info["feasible_share"] == info["optimal_share"] == 0.0
    assert info["optimum"] == -4.0
