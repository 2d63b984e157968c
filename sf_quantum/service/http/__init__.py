"""Authentication, request limits and dependencies, shared by all dialects."""
