"""Runs Broadsheet on Slurm: batch and interactive scripts, workers on demand, and the settings of a site."""
