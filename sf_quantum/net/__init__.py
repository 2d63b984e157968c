"""Transports and credentials that clients and the QPU service share.

``transport`` sends HTTP requests over TCP, TLS or a Unix socket; ``bounded_answers`` limits
the time and size of answers, and ``sessions`` limits them for vendors' SDKs; ``munge``
makes and checks credentials; ``local_server`` serves programs on this machine; ``relay``
limits the answers to a vendor's client that has no limits itself.

Imports: protocol.
"""
