"""The defaults and limits of samplers, in a module that does not import dimod."""

from __future__ import annotations

#: number of valid seeds, which start at 0
SEEDS = 2**31
#: default number of reads of simulated annealing
READS = 1000
# A tenth of neal's own default: on clustering-like QUBOs of 20, 40 and 60 variables 34,
# 50 and 40 % of the reads are optimal (39, 71 and 89 % at 1000 sweeps), and 1000 reads
# take 0.03 to 0.1 s instead of 0.3 to 0.9 s.
SWEEPS = 100
#: maximum atoms of the emulators: 14 take 15 s in QuTiP, a chain of 16 a minute in
#: emu-mps
ATOMS = {"qutip": 14, "emu-mps": 30}
