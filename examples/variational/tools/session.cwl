cwlVersion: v1.2
class: CommandLineTool
label: Choose angles and measure there until the optimiser ends
baseCommand: python3
arguments: [{valueFrom: session, position: 2}]
inputs:
  program: {type: File, inputBinding: {position: 1}}
  problem: {type: File, inputBinding: {position: 3, prefix: --problem}}
outputs:
  state: File
  result: File
