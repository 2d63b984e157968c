"""Jobs, leases, identities, reasons, settings and errors: plain data.

``jobs`` has users, leases, jobs and requests for them, ``reasons`` the reasons for the end of
a job or lease, with their texts, ``settings`` the sections of the configuration file,
``photonic`` experiments in linear optics, ``errors`` the error of a refused request.

Imports: protocol.
"""
