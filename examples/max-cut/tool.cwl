cwlVersion: v1.2
class: CommandLineTool
label: Cut a graph
baseCommand: python3
inputs:
  program: {type: File, inputBinding: {position: 1}}
  edges: {type: File, inputBinding: {position: 2}}
  vertices: int?
outputs:
  cut: {type: File, outputBinding: {glob: cut.json}}
