"""The network: its alphabet, its layers and weights, and its forward pass in NumPy."""
