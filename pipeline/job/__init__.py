"""A job: its phases, its tasks on workers, what it waits for, what it would take."""
