cwlVersion: v1.2
class: CommandLineTool
label: Run a program of an SDK on the QPU that its location holds
baseCommand: [sfq, lease, --held, --clients, --]
inputs:
  python: {type: string, inputBinding: {position: 1}}
  program: {type: File, inputBinding: {position: 2}}
stdout: energy.txt
outputs:
  energy: {type: stdout}
