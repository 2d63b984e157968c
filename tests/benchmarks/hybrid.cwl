cwlVersion: v1.2
class: Workflow
label: The experiment of Rocco et al. (2025), its phases slept
doc: >
  The loop of R. Rocco et al., Dynamic Solutions for Hybrid Quantum-HPC Resource Allocation, QCE
  2025, section IV, with the shape of workflows/clustering-aggregation.cwl: cluster, solve on the
  QPU, score. Each phase on nodes sleeps as long as it is told to.
$namespaces: {cwltool: "http://commonwl.org/cwltool#"}
requirements:
  SubworkflowFeatureRequirement: {}
inputs:
  clusterings:
    type: string[]
    doc: seconds of each job of the clustering phase
  quantum:
    type: string
    doc: the command of the quantum phase
  silhouette:
    type: string
    doc: seconds of the silhouette
  iterations: int
steps:
  iterate:
    in:
      clusterings: clusterings
      quantum: quantum
      silhouette: silhouette
      left: iterations
      go_on: {default: true}
    out: [go_on, left]
    requirements:
      cwltool:Loop:
        loopWhen: $(inputs.go_on)
        loop:
          go_on: go_on
          left: left
        outputMethod: last
    run:
      class: Workflow
      requirements:
        ScatterFeatureRequirement: {}
      inputs:
        clusterings: string[]
        quantum: string
        silhouette: string
        left: int
        go_on: boolean
      steps:
        cluster:
          in: {seconds: clusterings}
          scatter: seconds
          out: [clustering]
          run:
            class: CommandLineTool
            baseCommand: [sh, -c, 'sleep "$0" && echo "$0" >clustering']
            inputs:
              seconds: {type: string, inputBinding: {position: 1}}
            outputs:
              clustering: {type: File, outputBinding: {glob: clustering}}
        solve:
          in: {command: quantum, clusterings: cluster/clustering}
          out: [samples]
          run:
            class: CommandLineTool
            baseCommand: [sh, -c, 'eval "$0" && cat "$@" >samples']
            inputs:
              command: {type: string, inputBinding: {position: 1}}
              clusterings: {type: "File[]", inputBinding: {position: 2}}
            outputs:
              samples: {type: File, outputBinding: {glob: samples}}
        score:
          in: {seconds: silhouette, left: left, samples: solve/samples}
          out: [go_on, left]
          run:
            class: CommandLineTool
            baseCommand:
              - sh
              - -c
              - |
                sleep "$0" && left=$(($1 - 1)) && [ $left -gt 0 ] && go_on=true || go_on=false
                echo "{\"go_on\": $go_on, \"left\": $left}" >cwl.output.json
            inputs:
              seconds: {type: string, inputBinding: {position: 1}}
              left: {type: int, inputBinding: {position: 2}}
              samples: {type: File, inputBinding: {position: 3}}
            outputs:
              go_on: boolean
              left: int
      outputs:
        go_on: {type: boolean, outputSource: score/go_on}
        left: {type: int, outputSource: score/left}
outputs:
  left: {type: int, outputSource: iterate/left}
