"""The service's own dialect, ``/v1``, described by ``/openapi.json``."""
