"""Records when and where each step ran: spans, the clocks of processes, and the current activity of a process."""
