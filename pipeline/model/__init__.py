"""Models: the network, n-grams, fastText's classifiers and encoders, with their files and forward passes in NumPy."""
