"""Where a step runs: one StreamFlow connector a file, its schema beside it."""
