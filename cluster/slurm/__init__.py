"""Slurm: batch and interactive scripts, workers on demand, and the site's settings that they share."""
