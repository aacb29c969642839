"""Turns the bytes of files into texts on a GPU, on a worker that has one."""
