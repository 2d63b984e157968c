"""Enlarge the penalty until the best sample has no conflicts, on the QPU of the environment."""

import json
import sys

from dimod import BINARY, BinaryQuadraticModel

from sf_quantum.qpu.environment import from_environment
from sf_quantum.samplers.neal import NealSampler

with open(sys.argv[1], encoding="utf-8") as file:
    graph = json.load(file)

remote = from_environment()
sampler = NealSampler() if remote is None else remote.sampler()
for n in range(6):
    penalty = float(sys.argv[2]) * 2**n
    # a chosen vertex gains 1, and both ends of an edge together cost the penalty
    model = BinaryQuadraticModel(
        dict.fromkeys(graph["vertices"], -1.0),
        {(one, other): penalty for one, other in graph["edges"]},
        0.0,
        BINARY,
    )
    best = sampler.sample(model, num_reads=100, seed=1).first.sample
    chosen = [vertex for vertex in graph["vertices"] if best[vertex]]
    conflicts = [edge for edge in graph["edges"] if {*edge} <= {*chosen}]
    if not conflicts:
        break
with open("answer.json", "w", encoding="utf-8") as file:
    json.dump({"chosen": chosen, "conflicts": conflicts, "penalty": penalty}, file)
