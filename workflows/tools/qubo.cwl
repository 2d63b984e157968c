cwlVersion: v1.2
class: CommandLineTool
label: Build the QUBO of the consensus
doc: >
  Every cluster of every clustering is a candidate; overlapping candidates exclude each other. The
  outputs come from cwl.output.json, which the tool writes.
baseCommand: [sfq, qubo]
inputs:
  clusterings:
    type: File[]
    inputBinding: {position: 1}
  weights:
    type: string?
    inputBinding: {prefix: --weights}
  penalty:
    type: string?
    inputBinding: {prefix: --penalty}
arguments: [--output, problem.json, --outputs, cwl.output.json]
outputs:
  problem: File
  variables: int
