"""Checks of bindings: their targets and filters, and whether steps can run on the targets.

``binding`` reads a binding and checks its references, ``folders`` checks the folders in which
steps run, and ``resources`` the cores, memory and containers that steps require.

Imports: candidates, checking, checking/cwl, checking/deployments.
"""
