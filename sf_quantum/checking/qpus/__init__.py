"""Steps that run on QPUs: their filters, problem sizes and the QPUs' replies.

``candidate_filters`` checks the filters of quantum candidates, ``problem_sizes`` reads how
large their problems are, and ``availability`` asks the QPUs whether they can run them at
all, and now.

Imports: candidates, checking, checking/bindings, checking/cwl, checking/deployments,
journal, protocol, qpu.
"""
