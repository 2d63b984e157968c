cwlVersion: v1.2
class: Workflow
inputs:
  program: {type: File, default: {class: File, location: offload.py}}
  iterations: {type: int, default: 5}
outputs:
  energies: {type: File, outputSource: offload/energies}
steps:
  offload:
    in: {program: program, iterations: iterations}
    out: [energies]
    run:
      class: CommandLineTool
      baseCommand: python3
      inputs:
        program: {type: File, inputBinding: {position: 1}}
        iterations: {type: int, inputBinding: {position: 2, prefix: --iterations}}
      outputs:
        energies: {type: File, outputBinding: {glob: energies.txt}}
