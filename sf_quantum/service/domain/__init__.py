"""Jobs, leases, identities, reasons, settings and errors: plain data.

``jobs`` has users, leases, jobs and requests for them, ``reasons`` why a job or lease ended,
with the text, ``settings`` the sections of the configuration file, ``photonic`` experiments
in optics, ``errors`` a refused request.

Imports: protocol.
"""
