"""Reports a job: as a value, in a terminal, as a page and as a trace."""
