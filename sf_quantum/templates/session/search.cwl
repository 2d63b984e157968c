cwlVersion: v1.2
class: CommandLineTool
baseCommand: python3
inputs:
  program:
    type: File
    default: {class: File, location: search.py}
    inputBinding: {position: 1}
  graph: {type: File, inputBinding: {position: 2}}
  penalty: {type: float, inputBinding: {position: 3}}
  variables: {type: int?, doc: the size of the problem}
outputs:
  answer: {type: File, outputBinding: {glob: answer.json}}
