"""Transports and credentials that clients and the QPU service share.

``transport`` sends HTTP requests, over TCP, TLS or a Unix socket, and ``bounded_answers``
bounds what comes back, results too; ``sessions`` has the same for clients of vendors,
``munge`` makes and checks credentials, ``local_server`` serves programs on this machine,
and ``relay`` lends a QPU to programs that know another address.

Imports: protocol.
"""
