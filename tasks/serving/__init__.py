"""What answers requests with a registered policy."""
