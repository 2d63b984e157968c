"""When nodes are held: per step, in elastic allocations, or reserved for the run."""
