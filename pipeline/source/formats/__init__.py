"""A file a format."""
