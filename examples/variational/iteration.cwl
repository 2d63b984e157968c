cwlVersion: v1.2
class: Workflow
label: One iteration of a variational algorithm
inputs:
  program: File
  previous: File
  go_on: boolean
steps:
  measure:
    run: tools/measure.cwl
    in: {program: program, previous: previous}
    out: [state]
  next:
    run: tools/next.cwl
    in: {program: program, previous: measure/state}
    out: [go_on, state, result]
outputs:
  go_on: {type: boolean, outputSource: next/go_on}
  state: {type: File, outputSource: next/state}
  result: {type: File, outputSource: next/result}
