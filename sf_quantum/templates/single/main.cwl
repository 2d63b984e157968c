cwlVersion: v1.2
class: Workflow
doc: Write a problem, solve it, and read the answer.
inputs:
  graph: File
  penalty: float
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
