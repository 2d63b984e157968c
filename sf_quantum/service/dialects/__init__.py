"""The dialects over one job queue.

``dialect`` is their interface; each is a plug-in of the group ``sf_quantum.dialects``:
``v1``, ``sapi``, ``iqm`` and ``warden``. ``common`` has the shared parts of their routes,
``implicit_leases`` leases for clients without leases, ``large_bodies`` reads large
submissions off the event loop.

Imports: protocol, samplers, service/device, service/domain, service/http,
    service/queue, service/store.
"""
