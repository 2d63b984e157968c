"""Contract tests for registered samplers and QPUs, ours and a site's own."""
