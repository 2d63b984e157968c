"""Read the best sample, and say whether another one is needed, with a larger penalty."""

import json
import sys

from dimod import SampleSet

with open(sys.argv[1], encoding="utf-8") as file:
    graph = json.load(file)
with open(sys.argv[2], encoding="utf-8") as file:
    best = SampleSet.from_serializable(json.load(file)).first.sample
penalty = float(sys.argv[3])

chosen = [vertex for vertex in graph["vertices"] if best[vertex]]
conflicts = [edge for edge in graph["edges"] if {*edge} <= {*chosen}]
with open("answer.json", "w", encoding="utf-8") as file:
    json.dump({"chosen": chosen, "conflicts": conflicts, "penalty": penalty}, file)
with open("cwl.output.json", "w", encoding="utf-8") as file:
    answer = {"class": "File", "path": "answer.json"}
    again = bool(conflicts) and penalty < 10  # a loop on a QPU needs an end
    json.dump({"answer": answer, "again": again, "next_penalty": 2 * penalty}, file)
