"""Engines, from text to labels: `base` is their interface, `open` chooses between those of `cpu` and `cuda`."""
