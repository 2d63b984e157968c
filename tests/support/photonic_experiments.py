"""Random experiments in linear optics, and their probabilities by Perceval alone."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random

import numpy as np
from perceval import (
    BS,
    PERM,
    PS,
    BasicState,
    Circuit,
    Detector,
    Experiment,
    Matrix,
    NoiseModel,
    PortLocation,
    Unitary,
)
from perceval.runtime import SimulatedComputer


def random_experiment(number: int) -> Experiment:
    """Return a random experiment; each number makes another."""
    random = Random(number)
    modes = random.randrange(2, 7)
    told = Experiment(_circuit(random, modes))
    photons = random.randrange(1, min(modes, 4) + 1)
    state = [1] * photons + [0] * (modes - photons)
    random.shuffle(state)
    least = random.randrange(1, photons + 1)
    if modes > 3 and random.randrange(2):
        mode = random.randrange(modes)
        expected = random.randrange(2) if photons > 1 else 0
        # of the output alone, or also of the input, which the state then leaves out
        where = random.choice((PortLocation.OUTPUT, PortLocation.IN_OUT))
        told.add_herald(mode, expected, location=where)
        if where is PortLocation.IN_OUT:
            del state[mode]
            if not any(state):
                state[0] = 1
            photons = sum(state) + expected
        least = random.randrange(1, max(2, photons - expected + 1))
    told.with_input(BasicState(state))
    told.min_detected_photons_filter(least)
    if random.randrange(2):
        free = [mode for mode in range(modes) if mode not in told.heralds]
        some = random.sample(free, 2)
        told.set_postselection(f"[{some[0]},{some[1]}]<2")
    return told


def probabilities(told: Experiment, noise: NoiseModel) -> Mapping[str, float]:
    """Simulate an experiment exactly, with threshold detectors."""
    clicked = told.copy()
    for mode in range(clicked.circuit_size):
        clicked.add(mode, Detector.threshold())
    computer = SimulatedComputer("SLOS")
    computer.noise = noise
    results = computer.probs(clicked)["results"]
    return {str(state): float(chance) for state, chance in results.items()}


def _circuit(random: Random, modes: int) -> Circuit:
    if random.randrange(3) == 0:
        return Circuit(modes).add(0, _unitary(random, modes))
    circuit = Circuit(modes)
    for _ in range(random.randrange(3, 4 * modes)):
        mode = random.randrange(modes - 1)
        splitter = random.choice((BS.H, BS.Rx, BS.Ry))(random.uniform(0, 3))
        phase, turned = PS(random.uniform(0, 6)), PERM([1, 0])
        inner = Circuit(2).add(0, _unitary(random, 2)).add(1, PS(random.random()))
        circuit.add(mode, random.choice((splitter, splitter, phase, turned, inner)))
    return circuit


def _unitary(random: Random, modes: int) -> Unitary:
    entries = [complex(random.gauss(0, 1), random.gauss(0, 1)) for _ in range(modes**2)]
    unitary, _ = np.linalg.qr(np.array(entries).reshape(modes, modes))
    return Unitary(Matrix(unitary))
