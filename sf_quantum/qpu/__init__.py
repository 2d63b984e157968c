"""How a QPU is reached: one kind or vendor a file, found by entry point."""
