"""Registers, and independent sets on emulated atoms beyond the contract."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from dimod import BinaryQuadraticModel

from sf_quantum.errors import InputError, QpuError
from sf_quantum.files import JSON
from sf_quantum.samplers import neutral_atom
from sf_quantum.samplers.defaults import ATOMS
from sf_quantum.samplers.neutral_atom import (
    Embedding,
    NeutralAtomSampler,
    Pairs,
    RegisterLimits,
    embed,
)
from sf_quantum.service.device.emulator.atoms.runner import available
from sf_quantum.testing.samplers import problem

LIMITS = RegisterLimits(radius=9.8, apart=4.0, reach=50.0)
with_pulser = pytest.mark.skipif(not available(), reason=neutral_atom.MISSING)


def checked(
    found: Embedding | None, edges: Pairs, limits: RegisterLimits = LIMITS
) -> Embedding:
    """Look at every distance anew."""
    assert found is not None
    count = len(found.positions)
    for i, j in combinations(range(count), 2):
        distance = float(np.hypot(*(found.positions[i] - found.positions[j])))
        assert distance >= limits.apart
        wrong = (i, j) in [*found.missing, *found.extra]
        assert (distance < limits.radius) == (((i, j) in edges) != wrong)
    assert np.hypot(*found.positions.T).max() <= limits.reach
    return found


@pytest.mark.parametrize(
    ("count", "edges"),
    [
        (1, []),
        (2, [(0, 1)]),
        (5, [*combinations(range(5), 2)]),
        (6, [(i, i + 1) for i in range(5)]),
        # three that overlap with the same two
        (5, [(0, 3), (0, 4), (1, 3), (1, 4), (2, 3), (2, 4), (3, 4)]),
        (6, [(0, i) for i in range(1, 6)]),
        (12, [(i, j) for i, j in combinations(range(12), 2) if i // 4 == j // 4]),
    ],
)
def test_graphs_that_have_a_register_get_it(count: int, edges: Pairs) -> None:
    found = checked(embed(count, edges, LIMITS, seed=1), edges)
    assert (found.missing, found.extra) == ([], [])


def test_what_no_register_holds_is_told() -> None:
    # nobody can be near six who are far from each other
    star = [(0, i) for i in range(1, 7)]
    found = checked(embed(7, star, LIMITS, seed=1), star)
    assert 0 < len(found.missing) + len(found.extra) <= 3


def test_a_device_that_is_too_small_holds_nothing() -> None:
    crowd = RegisterLimits(radius=9.8, apart=4.0, reach=6.0)
    assert embed(30, [], crowd, seed=1) is None


def path(weights: list[float]) -> BinaryQuadraticModel:
    model = BinaryQuadraticModel("BINARY")
    model.add_linear_from((i, -weight) for i, weight in enumerate(weights))
    model.add_quadratic_from((i, i + 1, 2.0) for i in range(len(weights) - 1))
    return model


@with_pulser
def test_the_heaviest_set_not_the_largest() -> None:
    # the middle one outweighs its two neighbours
    samples = NeutralAtomSampler().sample(path([0.4, 1.0, 0.4]), seed=1)
    assert samples.first.sample == {0: 0, 1: 1, 2: 0}
    assert (samples.record.energy == -1.0).mean() > 0.8
    assert samples.info["local_detuning"] is True
    assert samples.info["missing"] == samples.info["extra"] == []
    assert samples.info["register"].keys() == {"0", "1", "2"}


@with_pulser
def test_what_could_not_be_embedded_is_repaired() -> None:
    star = BinaryQuadraticModel("BINARY")
    star.add_linear_from((i, -1.0) for i in range(7))
    star.add_quadratic_from((0, i, 1.05) for i in range(1, 7))
    samples = NeutralAtomSampler().sample(star, seed=1, num_reads=300)
    assert samples.info["missing"] or samples.info["extra"]
    assert samples.info["repaired_reads"] > 0
    assert samples.first.energy == -6.0
    # no read has the centre and a leaf whose edge is missing
    for i, j in samples.info["missing"]:
        columns = [samples.variables.index(int(label)) for label in (i, j)]
        assert not samples.record.sample[:, columns].all(axis=1).any()


@with_pulser
def test_it_takes_independent_sets_only() -> None:
    attracted = BinaryQuadraticModel(
        {"a": -1.0, "b": -1.0}, {"ab": -0.5}, 0.0, "BINARY"
    )
    with pytest.raises(InputError, match="'a' and 'b' interact without excluding"):
        NeutralAtomSampler().sample(attracted)


@with_pulser
def test_too_many_atoms_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(neutral_atom, "ATOMS", {"qutip": 3, "emu-mps": 3})
    with pytest.raises(InputError, match="4 variables interact, and 3 atoms can be"):
        NeutralAtomSampler().sample(problem())


@with_pulser
def test_a_pulse_outside_the_devices_limits_is_refused() -> None:
    from pulser import AnalogDevice

    class Busy:
        """A device that must not be asked to run anything."""

        name = "busy"

        def specs(self) -> str:
            """Six microseconds at most."""
            return str(AnalogDevice.to_abstract_repr())

        def run(self, sequence: str, shots: int) -> tuple[dict[str, int], JSON]:
            """Never."""
            raise AssertionError

    with pytest.raises(InputError, match=r"AnalogDevice: .*6000"):
        NeutralAtomSampler(Busy()).sample(problem(), duration=7000)


@pytest.mark.parametrize(
    ("installed", "atoms", "expected"),
    [
        (False, 14, "qutip"),
        (True, 14, "qutip"),
        (True, 15, "emu-mps"),
        (True, 30, "emu-mps"),
        (False, 15, "14 atoms can be emulated here, or 30 with emu-mps installed"),
        (True, 31, "30 atoms can be emulated here: use"),
    ],
)
def test_larger_registers_go_to_tensor_networks_where_these_are(
    monkeypatch: pytest.MonkeyPatch, installed: bool, atoms: int, expected: str
) -> None:
    known = object() if installed else None
    monkeypatch.setattr("importlib.util.find_spec", lambda name: known)
    if expected in ATOMS:
        assert neutral_atom._emulator(atoms) == expected
    else:
        with pytest.raises(InputError, match=expected):
            neutral_atom._emulator(atoms)


@with_pulser
def test_tensor_networks_read_what_the_other_emulator_reads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("emu_mps", reason="emu-mps is not installed")
    bqm = path([1.0, 0.8, 1.0, 0.6])
    here = NeutralAtomSampler().sample(bqm, seed=1, num_reads=300)
    monkeypatch.setattr(neutral_atom, "ATOMS", {"qutip": 2, "emu-mps": 30})
    first, again = (
        NeutralAtomSampler().sample(bqm, seed=1, num_reads=300) for _ in range(2)
    )
    assert first.info["machine"] == "emu-mps"
    assert first == again
    assert first.first.energy == here.first.energy
    means = (found.record.sample.mean(axis=0) for found in (first, here))
    assert next(means) == pytest.approx(next(means), abs=0.15)


class Counting:
    """A device that answers with what it was made with."""

    name = "counting"

    def __init__(self, counts: dict[str, int]) -> None:
        self._counts = counts

    def specs(self) -> str:
        """A real device's."""
        from pulser import AnalogDevice

        return str(AnalogDevice.to_abstract_repr())

    def run(self, sequence: str, shots: int) -> tuple[dict[str, int], JSON]:
        """Whatever was asked for."""
        return self._counts, {}


@with_pulser
@pytest.mark.parametrize("counts", [{"101": 7}, {"101": 5, "010": 2}, {"101": 2000}])
def test_as_many_reads_as_came(counts: dict[str, int]) -> None:
    sampler = NeutralAtomSampler(Counting(counts))
    samples = sampler.sample(path([1.0, 1.0, 1.0]), seed=1, num_reads=10)
    assert len(samples) == samples.info["reads"] == sum(counts.values())
    assert samples.first.sample == {0: 1, 1: 0, 2: 1}


@with_pulser
@pytest.mark.parametrize(
    ("counts", "words"),
    [
        ({"10": 10}, "10 times '10' for 3 atoms"),
        ({"101": 4, "1011": 6}, "6 times '1011' for 3 atoms"),
        ({"101": -1}, "-1 times '101'"),
        ({"101": 0}, "returned no reads"),
        ({}, "returned no reads"),
    ],
)
def test_reads_of_other_atoms_are_the_machines_fault(
    counts: dict[str, int], words: str
) -> None:
    sampler = NeutralAtomSampler(Counting(counts))
    with pytest.raises(QpuError, match=f"QPU 'counting' answers.* {words}|{words}"):
        sampler.sample(path([1.0, 1.0, 1.0]), seed=1, num_reads=10)


def test_without_pulser_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"pip install 'sf-quantum\[pulser\]'"):
        NeutralAtomSampler().sample(problem())
