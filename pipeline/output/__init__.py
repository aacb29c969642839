"""Writes and reads the output folder: its names, the commit of a chunk, the records of a job, and verification."""
