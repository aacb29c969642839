"""Improves labels with a model: explains its labels, chooses the rows to label next, and takes decisions on rows."""
