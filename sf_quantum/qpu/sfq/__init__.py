"""Our own QPU service as a QPU, and the client of its HTTP interface."""
