cwlVersion: v1.2
class: CommandLineTool
label: Measure the energy at the chosen angles, on the QPU
baseCommand: python3
arguments: [{valueFrom: measure, position: 2}]
inputs:
  program: {type: File, inputBinding: {position: 1}}
  previous: {type: File, inputBinding: {position: 3, prefix: --previous}}
outputs:
  state: {type: File, outputBinding: {glob: state.json}}
