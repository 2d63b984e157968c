cwlVersion: v1.2
class: Workflow
label: A variational algorithm in one step, which holds the QPU to its end
inputs:
  program: {type: File, default: {class: File, location: variational.py}}
  problem:
    type: File
    doc: couplings, field and settings, as in ising.json (VQE) and families.json (QAOA)
steps:
  solve:
    run: tools/session.cwl
    in: {program: program, problem: problem}
    out: [state, result]
outputs:
  state:
    type: File
    doc: every measured energy, and where
    outputSource: solve/state
  result:
    type: File
    doc: the energy found, its angles, and of a QAOA the best spins that were read
    outputSource: solve/result
