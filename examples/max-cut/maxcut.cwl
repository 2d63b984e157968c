cwlVersion: v1.2
class: Workflow
label: The maximum cut of a graph
inputs:
  program: File
  edges: File
  vertices:
    type: int
    doc: the size of the problem, for the decision where it is solved
outputs:
  cut: {type: File, outputSource: solve/cut}
steps:
  solve:
    run: tool.cwl
    in: {program: program, edges: edges, vertices: vertices}
    out: [cut]
