"""Planning: simulates allocation strategies for hybrid applications, and recommends one.

``plan`` makes a workload (``workloads``) from the planned file and the values that
``measured`` fits to journals; ``traces`` reads recorded load. ``random_draws`` draws runs and
load. ``experiment`` runs each strategy on the same draws in ``simulation`` and measures its
cost (node-seconds, price, energy). ``estimate`` computes means and confidence intervals,
``comparison`` compares all strategies, and ``recommendation`` recommends one of them.
``strategy_map`` repeats the comparison for other ratios and loads, and ``map_picture`` draws
the map. ``allocation_lines`` writes a strategy for a StreamFlow file, with no more nodes than
partitions can grant, as ``site_nodes`` computes. The scheduling policies are the service's
own, and the rules of elastic allocations the connectors' own.

Imports: connectors, journal, reporting, service/domain, service/scheduling, slurm.
"""
