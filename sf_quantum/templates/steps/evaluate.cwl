cwlVersion: v1.2
class: CommandLineTool
doc: The outputs are in cwl.output.json, which the program writes.
baseCommand: python3
inputs:
  program:
    type: File
    default: {class: File, location: evaluate.py}
    inputBinding: {position: 1}
  graph: {type: File, inputBinding: {position: 2}}
  samples: {type: File, inputBinding: {position: 3}}
  penalty: {type: float, inputBinding: {position: 4}}
outputs:
  answer: File
  again: boolean
  next_penalty: float
