"""One engine a worker, from text to labels: `base` says what it is, `open` chooses one, `cpu` and `cuda` are they."""
