"""The kinds of QPU, one module per vendor, and what several of them share."""
