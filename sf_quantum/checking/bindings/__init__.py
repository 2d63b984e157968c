"""What steps are bound to: targets and filters, and whether steps can run there.

``binding`` reads a binding and checks what it names, ``folders`` checks the folders of steps,
``resources`` the cores, memory and containers that steps require.

Imports: candidates, checking, checking/cwl, checking/deployments.
"""
