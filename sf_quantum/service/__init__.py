"""The QPU service: leases, a queue that survives being killed, and one device.

``run`` is the process and serves ``app`` with a ``config``: requests pass ``http`` and
reach the routes of ``dialects``, which call ``queue``; this keeps its state in ``store``,
orders jobs by ``scheduling``, and gives them to ``device``. ``domain`` is what they all
speak of. ``check`` checks a configuration, ``config_reload`` takes changes of it while the
service runs, ``state`` locks the state folder, ``twin`` is a device that stands for
another. ``metrics`` shows what ``queue/observations`` and ``http/traffic`` count, ``page``
the service.

Imports: net, protocol, qpu, service/*.
"""
