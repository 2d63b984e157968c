"""Planning: simulates allocation strategies for hybrid applications, and recommends one.

``plan`` makes a workload (``workloads``) of what is to be planned and of what ``measured``
fits to journals; ``traces`` reads recorded load. ``random_draws`` draws runs and load,
``experiment`` runs each strategy on the same draws in ``simulation`` and measures what it
costs (node-seconds, price, energy), ``estimate`` has means
and intervals, ``comparison`` compares all strategies, and ``recommendation`` names one.
``strategy_map`` repeats this for other ratios, and ``map_picture`` draws it.
``allocation_lines`` writes the strategy for a StreamFlow file, within what ``site_nodes``
says that partitions can grant. The policies are the service's, the rules of elastic
allocations those of the connectors.

Imports: connectors, journal, reporting, service/domain, service/scheduling, slurm.
"""
