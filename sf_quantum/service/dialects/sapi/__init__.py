"""SAPI, the dialect of D-Wave's Ocean tools.

``routes`` has the API and decodes bodies, which hold whole problems (nothing is uploaded in
parts); ``dialect`` is the dialect's class. ``problems`` reads problems and shows the queue's
jobs as problems, in the format of ``qp_format``; ``parameters`` checks solver parameters and
translates them for a job. ``solver`` describes the annealer and models its times, and
``refusals`` writes errors.
"""
