cwlVersion: v1.2
class: CommandLineTool
label: Score the consensus partitions, and decide whether the loop continues
doc: >
  The outputs come from cwl.output.json, which the tool writes: the engine needs no JavaScript.
baseCommand: [sfq, score]
inputs:
  clusterings:
    type: File[]
    inputBinding: {position: 1}
  points:
    type: File
    inputBinding: {prefix: --points}
  label:
    type: string?
    inputBinding: {prefix: --label}
  samples:
    type: File
    inputBinding: {prefix: --samples}
  previous:
    type: File?
    inputBinding: {prefix: --previous}
  seed:
    type: int
    inputBinding: {prefix: --seed}
  threshold:
    type: float?
    inputBinding: {prefix: --threshold}
  limit:
    type: int?
    inputBinding: {prefix: --limit}
  window:
    type: float?
    inputBinding: {prefix: --window}
  exact_up_to:
    type: int?
    inputBinding: {prefix: --exact-up-to}
outputs:
  again: boolean
  next_seed: int
  state: File
  labels: File
  summary: File
