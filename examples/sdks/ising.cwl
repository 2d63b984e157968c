cwlVersion: v1.2
class: Workflow
label: The ground-state energy of a transverse-field Ising chain
inputs:
  python:
    type: string
    doc: a Python that has the SDK, on the location's PATH or with its path
  program: File
outputs:
  energy: {type: File, outputSource: solve/energy}
steps:
  solve: {run: tool.cwl, in: {python: python, program: program}, out: [energy]}
