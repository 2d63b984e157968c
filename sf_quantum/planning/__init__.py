"""Planning: simulates allocation strategies for hybrid applications, and recommends one.

``plan`` makes a workload (``workloads``) from the planned file and the values that
``measured`` fits to journals; ``traces`` reads recorded load. ``random_draws`` draws runs and
load. ``experiment`` runs each strategy on the same draws in ``simulation`` and measures its
cost (node-seconds, price, energy). ``estimate`` computes means and confidence intervals,
``comparison`` compares all strategies, and ``recommendation`` recommends one of them.
``strategy_map`` repeats the comparison for other ratios of quantum to classical time and
other loads, and ``map_picture`` draws the map. ``allocation_lines`` writes the lines of a
StreamFlow file for a strategy, with at most the nodes that partitions can grant, as computed
in ``site_nodes``. The simulation runs the service's own scheduling policies and the
connectors' own rules of elastic allocations.

Imports: connectors, journal, reporting, service/domain, service/scheduling, slurm.
"""
