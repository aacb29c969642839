"""Measuring kernels: what each must do, what it took, and what the machine could do."""
