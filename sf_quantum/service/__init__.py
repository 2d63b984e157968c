"""The QPU service: leases, a job queue that survives crashes of the service, and one device.

The process ``run`` serves the application ``app`` with a configuration (``config``). Requests
pass ``http`` and reach the routes of ``dialects``, which call ``queue``. The queue keeps its
state in ``store``, orders jobs with ``scheduling``, and gives them to ``device``; ``domain``
defines the data that all of these share.

``check`` checks a configuration, ``config_reload`` decides which changes of the configuration
apply while the service runs, and ``state`` locks the state folder. ``twin`` is a device that
emulates another device. ``metrics`` reports the counts of ``queue/observations`` and
``http/traffic``, and ``page`` shows the service in a browser.

Imports: net, protocol, qpu, service/*.
"""
