cwlVersion: v1.2
class: CommandLineTool
label: Run a program of an SDK on the QPU that its location holds
# with a stdout of CWL's, StreamFlow would write the program's errors to that file, too, and not show them
baseCommand: [sh, -c, 'exec "$@" > energy.txt', sh, sfq, lease, --held, --clients, --]
inputs:
  python: {type: string, inputBinding: {position: 1}}
  program: {type: File, inputBinding: {position: 2}}
outputs:
  energy: {type: File, outputBinding: {glob: energy.txt}}
