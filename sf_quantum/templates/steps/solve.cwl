cwlVersion: v1.2
class: CommandLineTool
doc: Solve the problem on the QPU of the step's location, or by simulated annealing if the location has no QPU.
baseCommand: [sfq, solve]
inputs:
  problem: {type: File, inputBinding: {prefix: --problem}}
  variables: {type: int?, doc: the size of the problem}
arguments: [--seed, "1", --output, samples.json]
outputs:
  samples: {type: File, outputBinding: {glob: samples.json}}
