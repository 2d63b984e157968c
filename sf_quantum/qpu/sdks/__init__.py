"""A job's QPU as programs of SDKs expect it: an object of the SDK, or its own server.

``qiskit``, ``pennylane``, ``pulser`` and ``perceval`` make an object of their SDK;
``stock_clients`` runs the server that the SDK's own client asks.
"""
