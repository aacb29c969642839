"""Engines, from text to labels: `base` is their interface, `open` chooses between those of `cpu` and `cuda`.

`profile` measures their kernels; `on_gpu` takes texts that are on a GPU already.
"""
