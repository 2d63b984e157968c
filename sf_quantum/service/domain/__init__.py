"""Jobs, leases, identities, reasons, settings and errors, as plain data.

- ``jobs``: users, leases, jobs, and requests for leases and jobs
- ``reasons``: why jobs are interrupted and leases end, with the texts that users see
- ``settings``: the sections of the configuration file
- ``photonic``: experiments in linear optics
- ``errors``: the error of a refused request

Imports: protocol.
"""
