"""Adapters of a job's QPU for SDKs: an object of the SDK, or a server for its own client.

``qiskit``, ``pennylane``, ``pulser`` and ``perceval`` make an object of their SDK;
``stock_clients`` runs the server to which the SDK's own client sends its requests.
"""
