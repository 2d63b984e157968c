"""A job's QPU as programs of SDKs expect it: an object of the SDK, or its own server."""
