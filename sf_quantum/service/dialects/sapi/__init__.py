"""SAPI, the dialect of D-Wave's Ocean tools."""
