"""Transports and credentials that clients and the QPU service share.

``transport`` sends HTTP requests, over TCP, TLS or a Unix socket, with limits on what comes
back; ``sessions`` has the same for clients of vendors, ``munge`` makes and checks credentials,
and ``relay`` lends a QPU to programs that know another address.

Imports: protocol.
"""
