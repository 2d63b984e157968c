"""Contract tests for what is registered here, in this distribution or in a site's own."""
