"""The dialects over one job queue, the page, and the metrics."""
