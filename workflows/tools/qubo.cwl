cwlVersion: v1.2
class: CommandLineTool
label: Build the QUBO of the consensus
doc: Every cluster of every clustering is a candidate; overlapping candidates exclude each other.
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
arguments: [--output, problem.json]
outputs:
  problem:
    type: File
    outputBinding: {glob: problem.json}
