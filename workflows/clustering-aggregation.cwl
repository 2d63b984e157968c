cwlVersion: v1.2
class: Workflow
label: Clustering aggregation
doc: >
  The workflow of R. Rocco et al., Dynamic Solutions for Hybrid Quantum-HPC Resource Allocation, QCE
  2025: cluster with three methods, choose the clusters of their consensus by a QUBO, score it by
  its silhouette, and repeat with other parameters until the score reaches the threshold.
$namespaces: {cwltool: "http://commonwl.org/cwltool#"}
requirements:
  SubworkflowFeatureRequirement: {}
inputs:
  points:
    type: File
    doc: CSV or TSV with a header, or .npy; n points by d features
  label:
    type: string?
    doc: a column with the ground truth, not a feature
  methods:
    type: string[]
    default: [kmeans, dbscan, single-linkage]
  parameters:
    type: File?
    doc: the methods' parameters by seed, instead of drawing them from the ranges
  clusters:
    type: string
    default: "4:10"
    doc: range of the number of clusters (k-means, single linkage)
  radius:
    type: string
    default: "1.2:4.5"
    doc: range of DBSCAN's radius, in the features' units
  least:
    type: int
    default: 10
    doc: points within the radius that make a core point of DBSCAN
  weights:
    type: string
    default: quality
    doc: quality (size times silhouette) or size (eq. 1 of the paper)
  penalty:
    type: string
    default: tight
    doc: tight (just above the lighter weight) or candidates (eq. 1 of the paper)
  sampler:
    type: string
    default: auto
    doc: auto uses the QPU of the location, or else simulated annealing
  reads:
    type: int
    default: 1000
  settings:
    type: string[]
    default: []
    doc: other parameters of the sampler, NAME=VALUE each (sfq samplers NAME lists them)
  seed:
    type: int
    default: 0
    doc: seed of the first iteration, increased by 1 in each iteration
  threshold:
    type: float
    default: 0.8
    doc: silhouette that ends the loop
  limit:
    type: int
    default: 10
    doc: maximum number of iterations
  window:
    type: float
    default: 0.1
    doc: score samples up to this far above the lowest energy, relative to it
  exact_up_to:
    type: int
    default: 200000
    doc: with more points, silhouettes are estimated from a sample
steps:
  iterate:
    run: iteration.cwl
    in:
      points: points
      label: label
      methods: methods
      parameters: parameters
      clusters: clusters
      radius: radius
      least: least
      weights: weights
      penalty: penalty
      sampler: sampler
      reads: reads
      settings: settings
      threshold: threshold
      limit: limit
      window: window
      exact_up_to: exact_up_to
      go_on: {default: true}
      seed: seed
      previous: {default: null}
      previous_samples: {default: null}
    requirements:
      cwltool:Loop:
        loopWhen: $(inputs.go_on)
        loop:
          go_on: again
          seed: next_seed
          previous: state
          previous_samples: samples
        outputMethod: last
    out: [again, next_seed, state, samples, labels, summary]
  plot:
    run: tools/plot.cwl
    in:
      points: points
      label: label
      state: iterate/state
      threshold: threshold
    out: [picture]
outputs:
  labels:
    type: File
    doc: the best consensus, a label for each point
    outputSource: iterate/labels
  summary:
    type: File
    doc: score, iterations, energies, samplers, seeds
    outputSource: iterate/summary
  picture:
    type: File
    doc: the clusters, their inputs, the score by iteration
    outputSource: plot/picture
