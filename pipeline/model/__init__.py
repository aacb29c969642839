"""The network: its alphabet, its layers and weights, their files, n-grams beside it, and its forward pass in NumPy."""
