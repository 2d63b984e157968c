"""The QPU service: leases, a queue that survives being killed, and one device.

``run`` is the process and serves ``app`` with a ``config``: requests pass ``http`` and
reach the routes of ``dialects``, which call ``queue``; the queue keeps its state in
``store``, orders jobs by ``scheduling``, and gives them to ``device``. ``domain`` has the
data that all of these share. ``check`` checks a configuration, ``config_reload`` applies
changes of it while the service runs, ``state`` locks the state folder, ``twin`` emulates
another device. ``metrics`` reports the counts of ``queue/observations`` and
``http/traffic``, ``page`` shows the service in a browser.

Imports: net, protocol, qpu, service/*.
"""
