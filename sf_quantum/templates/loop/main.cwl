cwlVersion: v1.2
class: Workflow
doc: Enlarge the penalty until the best sample has no conflicts.
$namespaces: {cwltool: "http://commonwl.org/cwltool#"}
requirements:
  SubworkflowFeatureRequirement: {}
inputs:
  graph: File
  penalty: float
steps:
  search:
    run: iteration.cwl
    in:
      graph: graph
      penalty: penalty
      again: {default: true}
    requirements:
      cwltool:Loop:
        loopWhen: $(inputs.again)
        loop: {again: again, penalty: next_penalty}
        outputMethod: last
    out: [answer, again, next_penalty]
outputs:
  answer: {type: File, outputSource: search/answer}
