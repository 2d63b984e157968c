cwlVersion: v1.2
class: Workflow
doc: The whole loop in one step, which holds the QPU from its first problem to its last.
inputs:
  graph: File
  penalty: float
  variables: int
steps:
  search:
    run: search.cwl
    in: {graph: graph, penalty: penalty, variables: variables}
    out: [answer]
outputs:
  answer: {type: File, outputSource: search/answer}
