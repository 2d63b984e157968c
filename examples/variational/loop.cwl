cwlVersion: v1.2
class: Workflow
label: A variational algorithm, each iteration a measurement on the QPU and a classical step
$namespaces: {cwltool: "http://commonwl.org/cwltool#"}
requirements:
  SubworkflowFeatureRequirement: {}
inputs:
  program: {type: File, default: {class: File, location: variational.py}}
  problem:
    type: File
    doc: couplings, field and settings, as in ising.json (VQE) and families.json (QAOA)
steps:
  start:
    run: tools/next.cwl
    in: {program: program, problem: problem}
    out: [state]
  iterate:
    run: iteration.cwl
    in:
      program: program
      previous: start/state
      go_on: {default: true}
    requirements:
      cwltool:Loop:
        loopWhen: $(inputs.go_on)
        loop: {go_on: go_on, previous: state}
        outputMethod: last
    out: [go_on, state, result]
outputs:
  state:
    type: File
    doc: every measured energy, and where
    outputSource: iterate/state
  result:
    type: File
    doc: the energy found, its angles, and of a QAOA the best spins that were read
    outputSource: iterate/result
