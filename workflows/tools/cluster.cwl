cwlVersion: v1.2
class: CommandLineTool
label: Cluster points with one method
doc: k-means, DBSCAN or single linkage, with parameters drawn by the seed or taken from a file.
baseCommand: [sfq, cluster]
inputs:
  points:
    type: File
    inputBinding: {prefix: --points}
  label:
    type: string?
    inputBinding: {prefix: --label}
  method:
    type: string
    inputBinding: {prefix: --method}
  seed:
    type: int
    inputBinding: {prefix: --seed}
  parameters:
    type: File?
    inputBinding: {prefix: --parameters}
  clusters:
    type: string?
    inputBinding: {prefix: --clusters}
  radius:
    type: string?
    inputBinding: {prefix: --radius}
  least:
    type: int?
    inputBinding: {prefix: --least}
  exact_up_to:
    type: int?
    inputBinding: {prefix: --exact-up-to}
arguments: [--output, clustering.json]
outputs:
  clustering:
    type: File
    outputBinding: {glob: clustering.json}
