"""The QPU service: leases, a queue that survives being killed, and one device.

``run`` serves ``app`` with a ``config``: requests pass ``http`` and reach the routes of
``dialects``, which call ``queue``; this keeps its state in ``store``, orders jobs by
``scheduling``, and gives them to ``device``. ``domain`` is what they all speak of.

Imports: net, protocol, qpu, service/*.
"""
