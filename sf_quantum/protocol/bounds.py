"""Bounds on the size of an answer, for clients and for the services that answer them."""

from __future__ import annotations

# The largest result that is read. The largest result of `sfq serve`, 100,000 reads of 5,000
# variables, has about 180 MB.
RESULT_BYTES = 256 * 1024 * 1024
# The largest other answer of a QPU's service: the graph of the largest QPU has about 3 MB.
# A parsed answer takes up to some 25 times its size.
ANSWER_BYTES = 8 * 1024 * 1024
