"""The service's state on disk: one SQLite file, its schema, and what is read from it."""
