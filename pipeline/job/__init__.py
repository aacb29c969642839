"""A job: how it begins, its steps, its tasks on workers, what it waits for, what it would take."""
