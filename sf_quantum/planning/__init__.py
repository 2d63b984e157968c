"""Planning: simulates allocation strategies for hybrid applications, and recommends one.

``reading`` reads what to compare, ``experiment`` runs each allocation strategy in
``simulation``, and ``recommendation`` names one. ``measured`` fits times from journals,
``traces`` reads recorded load. Of the service it has the scheduling policies, of the
connectors the rules of elastic allocations.

Imports: connectors, journal, reporting, service/domain, service/scheduling, slurm.
"""
