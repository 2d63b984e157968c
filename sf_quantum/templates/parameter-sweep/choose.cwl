cwlVersion: v1.2
class: CommandLineTool
baseCommand: python3
inputs:
  program:
    type: File
    default: {class: File, location: choose.py}
    inputBinding: {position: 1}
  answers: {type: "File[]", inputBinding: {position: 2}}
outputs:
  best: {type: File, outputBinding: {glob: best.json}}
