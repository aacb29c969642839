"""Measures how good a model is (accuracy, F1, reliability), and fits thresholds to that."""
