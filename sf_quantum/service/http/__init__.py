"""What every dialect shares: authentication, request limits, dependencies."""
