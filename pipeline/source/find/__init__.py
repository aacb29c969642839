"""Which files there are."""
