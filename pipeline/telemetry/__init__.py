"""What was done when, and where: spans of each step, clocks of each process, what a process does right now."""
