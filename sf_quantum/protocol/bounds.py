"""Bounds on the size of an answer, for clients and for the services that answer them."""

from __future__ import annotations

# Largest size of a result that is read. The largest result of `sfq serve`, 100,000 reads of
# 5,000 variables, takes about 180 MB.
RESULT_BYTES = 256 * 1024 * 1024
# Largest size of a QPU service's answer that is not a result: the graph of the largest QPU
# takes about 3 MB. Parsed, an answer takes up to some 25 times its size in memory.
ANSWER_BYTES = 8 * 1024 * 1024
