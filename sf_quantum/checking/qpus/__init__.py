"""Checks of steps that run on QPUs: their filters, problem sizes and the QPUs' replies.

``candidate_filters`` checks the filters of quantum candidates, ``problem_sizes`` reads the
sizes of the steps' problems, and ``availability`` queries the QPUs for whether they can run
the steps in principle, and now.

Imports: candidates, checking, checking/bindings, checking/cwl, checking/deployments,
journal, protocol, qpu.
"""
