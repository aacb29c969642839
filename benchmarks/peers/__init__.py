"""Peers: what users would use instead of our kernels, timed on the same GPU in the same run."""
