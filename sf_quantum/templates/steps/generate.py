"""Write the problem: its optimum is a largest set of vertices without an edge between them."""

import json
import sys

from dimod import BINARY, BinaryQuadraticModel

with open(sys.argv[1], encoding="utf-8") as file:
    graph = json.load(file)
penalty = float(sys.argv[2])

# a chosen vertex gains 1, and both ends of an edge together cost the penalty
model = BinaryQuadraticModel(
    dict.fromkeys(graph["vertices"], -1.0),
    {(one, other): penalty for one, other in graph["edges"]},
    0.0,
    BINARY,
)
with open("problem.json", "w", encoding="utf-8") as file:
    json.dump({"bqm": model.to_serializable()}, file)
# the step's outputs; `variables` tells the quantum candidate how large the problem is
with open("cwl.output.json", "w", encoding="utf-8") as file:
    problem = {"class": "File", "path": "problem.json"}
    json.dump({"problem": problem, "variables": len(model.variables)}, file)
