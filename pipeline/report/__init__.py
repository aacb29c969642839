"""What a job tells its user: the report as a value, and printed."""
