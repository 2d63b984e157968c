"""Bounds on what is read of an answer, for a client and for those who answer it."""

from __future__ import annotations

# The largest result that is read. The largest of our own service, 100,000 reads of 5,000
# variables, has about 180 MB.
RESULT_BYTES = 256 * 1024 * 1024
# The largest other answer of a QPU's service: the graph of the largest has about 3 MB. What
# is parsed takes up to some 25 times its size.
ANSWER_BYTES = 8 * 1024 * 1024
