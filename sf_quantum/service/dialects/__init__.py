"""The dialects over one job queue."""
