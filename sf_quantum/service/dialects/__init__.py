"""The dialects: HTTP APIs over one job queue.

``dialect`` is the interface of all dialects. The dialects ``v1``, ``sapi``, ``iqm`` and
``warden`` are plug-ins of the group ``sf_quantum.dialects``. ``common`` contains the shared
parts of the routes, ``implicit_leases`` acquires leases for clients without leases, and
``large_bodies`` reads large submissions off the event loop.

Imports: protocol, samplers, service/device, service/domain, service/http,
    service/queue, service/store.
"""
