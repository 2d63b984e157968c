"""Quantum offloading: two nodes and a QPU, held together and used in turn in a loop.

The program searches the ground state of a spin glass of 1,000 spins. In each iteration both
nodes perturb the best state so far and relax it, each with its own random numbers (``srun``);
then three patches of 120 spins, as many as fit on the QPU, are solved one after the other
with all other spins fixed (``sfq solve``). Without Slurm or a QPU in the environment, the same
program runs on one machine with simulated annealing.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import dimod
import numpy as np
import numpy.typing as npt

SPINS, NEIGHBOURS, KICKS = 1000, 6, 3
PATCHES, PATCH = 3, 120
Couplings = npt.NDArray[np.float64]
Spins = npt.NDArray[np.int8]


def glass(seed: int) -> Couplings:
    """Draw a random glass.

    :returns: symmetric couplings, shape (n, n); each spin has about six, of -1 or 1
    """
    random = np.random.default_rng(seed)
    chosen = np.triu(random.random((SPINS, SPINS)) < NEIGHBOURS / SPINS, 1)
    upper = np.where(chosen, random.choice([-1.0, 1.0], (SPINS, SPINS)), 0.0)
    return upper + upper.T


def energy(couplings: Couplings, spins: Spins) -> float:
    """Compute the energy of a state."""
    return float(spins @ couplings @ spins / 2)


def relax(couplings: Couplings, spins: Spins) -> Spins:
    """Flip the spin with the largest gain until no flip gains."""
    spins = spins.copy()
    fields = couplings @ spins
    while True:
        best = int(np.argmax(spins * fields))
        if spins[best] * fields[best] <= 0:
            return spins
        spins[best] = -spins[best]
        fields += 2 * spins[best] * couplings[best]


def kick(couplings: Couplings, spins: Spins, seed: int) -> Spins:
    """Perturb and relax a state several times; return the lowest state."""
    random = np.random.default_rng(seed)
    best = spins
    for _ in range(KICKS):
        flips = np.where(random.random(SPINS) < 0.05, -1, 1).astype(np.int8)
        tried = relax(couplings, best * flips)
        if energy(couplings, tried) < energy(couplings, best):
            best = tried
    return best


def on_this_node(seed: int) -> None:
    """Run one node's part of an iteration: read state.json, write a file per task."""
    task = int(os.environ.get("SLURM_PROCID", "0"))
    state = json.loads(Path("state.json").read_text())
    spins = np.array(state["spins"], np.int8)
    found = kick(glass(seed), spins, 1000 * state["iteration"] + task)
    node = os.environ.get("SLURMD_NODENAME", socket.gethostname())
    content = {"node": node, "spins": found.tolist()}
    Path(f"kicked-{task}.json").write_text(json.dumps(content))


def on_all_nodes(
    couplings: Couplings, spins: Spins, seed: int, iteration: int
) -> Spins:
    """Perturb a state on all nodes of the job; return the lowest result."""
    content = {"iteration": iteration, "spins": spins.tolist()}
    Path("state.json").write_text(json.dumps(content))
    nodes = int(os.environ.get("SLURM_JOB_NUM_NODES", "0"))
    each = [sys.executable, __file__, "--node", "--seed", str(seed)]
    spread = ["srun", f"--nodes={nodes}", "--ntasks-per-node=1", f"--ntasks={nodes}"]
    subprocess.run([*spread, *each] if nodes else each, check=True)
    found = [
        json.loads(Path(f"kicked-{task}.json").read_text())
        for task in range(max(1, nodes))
    ]
    names.update(one["node"] for one in found)
    states = [np.array(one["spins"], np.int8) for one in found]
    return min(states, key=lambda state: energy(couplings, state))


def on_the_qpu(couplings: Couplings, spins: Spins, seed: int) -> Spins:
    """Solve a patch around a random spin, with all other spins fixed."""
    random = np.random.default_rng(seed)
    patch = [int(random.integers(SPINS))]
    for spin in patch:
        near = np.flatnonzero(couplings[spin]).tolist()
        patch += [other for other in near if other not in patch]
        if len(patch) >= PATCH:
            break
    patch = patch[:PATCH]
    rest = spins.astype(float)
    rest[patch] = 0
    fields = couplings @ rest
    bqm = dimod.BinaryQuadraticModel.from_ising(
        {spin: fields[spin] for spin in patch},
        {
            (a, b): couplings[a, b]
            for i, a in enumerate(patch)
            for b in patch[:i]
            if couplings[a, b]
        },
    )
    Path("patch.json").write_text(json.dumps({"bqm": bqm.to_serializable()}))
    solve = ["sfq", "solve", "--problem", "patch.json", "--output", "solved.json"]
    subprocess.run([*solve, "--reads", "100", "--seed", str(seed)], check=True)
    content = json.loads(Path("solved.json").read_text())
    names.add(str(content["info"]["qpu"] or content["info"]["sampler"]))
    found = spins.copy()
    samples: dimod.SampleSet = dimod.SampleSet.from_serializable(content)  # type: ignore[no-untyped-call]
    for spin, value in samples.first.sample.items():
        found[spin] = value
    return min(spins, found, key=lambda state: energy(couplings, state))


# the nodes and QPUs that took part
names: set[str] = set()


def main() -> None:
    """Run the loop, or one node's part of an iteration."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--iterations", type=int, default=5)
    parser.add_argument("--node", action="store_true", help="one node's part")
    args = parser.parse_args()
    if args.node:
        on_this_node(args.seed)
        return
    couplings = glass(args.seed)
    spins = relax(couplings, np.ones(SPINS, np.int8))
    lines = [
        "energy        nodes    QPU",
        f"relaxed      {energy(couplings, spins):6.0f}",
    ]
    for iteration in range(1, args.iterations + 1):
        spins = on_all_nodes(couplings, spins, args.seed, iteration)
        kicked = energy(couplings, spins)
        for patch in range(PATCHES):
            spins = on_the_qpu(couplings, spins, PATCHES * iteration + patch)
        solved = energy(couplings, spins)
        lines.append(f"iteration {iteration}  {kicked:6.0f} {solved:6.0f}")
    lines.append(f"on {', '.join(sorted(names))}")
    Path("energies.txt").write_text("\n".join([*lines, ""]))


if __name__ == "__main__":
    main()
