cwlVersion: v1.2
class: Workflow
inputs:
  graph: File
  penalty: float
  again: boolean
steps:
  generate:
    run: generate.cwl
    in: {graph: graph, penalty: penalty}
    out: [problem, variables]
  solve:
    run: solve.cwl
    in: {problem: generate/problem, variables: generate/variables}
    out: [samples]
  evaluate:
    run: evaluate.cwl
    in: {graph: graph, samples: solve/samples, penalty: penalty}
    out: [answer, again, next_penalty]
outputs:
  answer: {type: File, outputSource: evaluate/answer}
  again: {type: boolean, outputSource: evaluate/again}
  next_penalty: {type: float, outputSource: evaluate/next_penalty}
