"""Jobs, leases, identities, reasons, settings and errors: plain data.

Imports: protocol.
"""
