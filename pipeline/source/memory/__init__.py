"""Input that is in memory already, or comes on standard input."""
