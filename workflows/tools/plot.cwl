cwlVersion: v1.2
class: CommandLineTool
label: Draw the consensus, its inputs and the score by iteration
baseCommand: [sfq, plot]
inputs:
  points:
    type: File
    inputBinding: {prefix: --points}
  label:
    type: string?
    inputBinding: {prefix: --label}
  state:
    type: File
    inputBinding: {prefix: --state}
  threshold:
    type: float?
    inputBinding: {prefix: --threshold}
arguments: [--output, clusters.png]
outputs:
  picture:
    type: File
    outputBinding: {glob: clusters.png}
