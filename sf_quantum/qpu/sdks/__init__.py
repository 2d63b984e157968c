"""Adapters of a job's QPU for SDKs: an SDK's object, or a server for the SDK's own client.

``qiskit``, ``pennylane``, ``pulser`` and ``perceval`` make an object of their SDK;
``stock_clients`` runs the server to which the SDK's own client sends its requests.
"""
