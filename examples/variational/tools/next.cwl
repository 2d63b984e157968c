cwlVersion: v1.2
class: CommandLineTool
label: Choose the angles to measure next
doc: >
  The outputs come from cwl.output.json, which the program writes: the engine needs no JavaScript.
baseCommand: python3
arguments: [{valueFrom: next, position: 2}]
inputs:
  program: {type: File, inputBinding: {position: 1}}
  problem: {type: File?, inputBinding: {position: 3, prefix: --problem}}
  previous: {type: File?, inputBinding: {position: 3, prefix: --previous}}
outputs:
  go_on: boolean
  state: File
  result: File?
