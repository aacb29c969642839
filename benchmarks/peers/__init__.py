"""What users would pick instead of our kernels, to be timed on the same GPU in the same run."""
