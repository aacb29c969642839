"""Evaluates a model on labelled rows, and fits temperatures, margins and promises to them."""
