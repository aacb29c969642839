"""Measuring kernels: the work of each, the time it took, and the ceilings of the machine."""
