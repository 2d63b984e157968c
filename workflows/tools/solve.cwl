cwlVersion: v1.2
class: CommandLineTool
label: Sample low-energy states of the QUBO
doc: >
  With the sampler "auto", on the QPU of the location's environment; where there is none, with
  simulated annealing.
baseCommand: [sfq, solve]
inputs:
  problem:
    type: File
    inputBinding: {prefix: --problem}
  sampler:
    type: string
    default: auto
    inputBinding: {prefix: --sampler}
  reads:
    type: int?
    inputBinding: {prefix: --reads}
  seed:
    type: int
    inputBinding: {prefix: --seed}
  previous:
    type: File?
    doc: samples of the previous iteration, whose angles QAOA starts from
    inputBinding: {prefix: --previous}
  settings:
    type:
      - "null"
      - type: array
        items: string
        inputBinding: {prefix: --set}
    # behind all others: cwltool would sort the single ones between the arguments below
    inputBinding: {position: 1}
    doc: other parameters of the sampler, NAME=VALUE each
  variables:
    type: int?
    doc: the size of the problem, for the decision where it is solved
arguments: [--output, samples.json]
outputs:
  samples:
    type: File
    outputBinding: {glob: samples.json}
