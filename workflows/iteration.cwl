cwlVersion: v1.2
class: Workflow
label: One iteration of clustering aggregation
doc: >
  Three clusterings, each a job of its own, so that each can run on its own node and release it when
  it is done; the QUBO of their consensus; its low-energy samples; the best consensus so far.
requirements:
  ScatterFeatureRequirement: {}
inputs:
  points: File
  label: string?
  methods: string[]
  parameters: File?
  clusters: string?
  radius: string?
  least: int?
  weights: string?
  penalty: string?
  sampler: string
  reads: int?
  settings: string[]?
  threshold: float?
  limit: int?
  window: float?
  exact_up_to: int?
  go_on: boolean
  seed: int
  previous: File?
  previous_samples: File?
steps:
  cluster:
    run: tools/cluster.cwl
    scatter: method
    in:
      points: points
      label: label
      method: methods
      seed: seed
      parameters: parameters
      clusters: clusters
      radius: radius
      least: least
      exact_up_to: exact_up_to
    out: [clustering]
  qubo:
    run: tools/qubo.cwl
    in:
      clusterings: cluster/clustering
      weights: weights
      penalty: penalty
    out: [problem, variables]
  solve:
    run: tools/solve.cwl
    in:
      problem: qubo/problem
      variables: qubo/variables
      sampler: sampler
      reads: reads
      settings: settings
      seed: seed
      previous: previous_samples
    out: [samples]
  score:
    run: tools/score.cwl
    in:
      points: points
      label: label
      clusterings: cluster/clustering
      samples: solve/samples
      previous: previous
      seed: seed
      threshold: threshold
      limit: limit
      window: window
      exact_up_to: exact_up_to
    out: [again, next_seed, state, labels, summary]
outputs:
  again: {type: boolean, outputSource: score/again}
  next_seed: {type: int, outputSource: score/next_seed}
  state: {type: File, outputSource: score/state}
  samples: {type: File, outputSource: solve/samples}
  labels: {type: File, outputSource: score/labels}
  summary: {type: File, outputSource: score/summary}
