"""How a QUBO is solved: one `dimod.Sampler` a file, found by entry point."""
