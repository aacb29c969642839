"""From the bytes of files to texts on a GPU, for a worker that has one."""
