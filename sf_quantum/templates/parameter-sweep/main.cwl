cwlVersion: v1.2
class: Workflow
doc: Solve the problem for each penalty at the same time, and choose the best answer.
requirements:
  ScatterFeatureRequirement: {}
inputs:
  graph: File
  penalties: float[]
steps:
  generate:
    run: generate.cwl
    scatter: penalty
    in: {graph: graph, penalty: penalties}
    out: [problem, variables]
  solve:
    run: solve.cwl
    scatter: [problem, variables]
    scatterMethod: dotproduct
    in: {problem: generate/problem, variables: generate/variables}
    out: [samples]
  evaluate:
    run: evaluate.cwl
    scatter: [samples, penalty]
    scatterMethod: dotproduct
    in: {graph: graph, samples: solve/samples, penalty: penalties}
    out: [answer]
  choose:
    run: choose.cwl
    in: {answers: evaluate/answer}
    out: [best]
outputs:
  best: {type: File, outputSource: choose/best}
