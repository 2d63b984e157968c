cwlVersion: v1.2
class: CommandLineTool
doc: On the QPU of its location, or by simulated annealing if that has none.
baseCommand: [sfq, solve]
inputs:
  problem: {type: File, inputBinding: {prefix: --problem}}
  variables: {type: int?, doc: the size of the problem}
arguments: [--seed, "1", --output, samples.json]
outputs:
  samples: {type: File, outputBinding: {glob: samples.json}}
