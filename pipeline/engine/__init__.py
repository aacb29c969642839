"""Engines, from text to labels: `base` is their interface, `open` chooses among those of `cpu`, `cuda` and `encoder`.

`profile` measures their kernels; `on_gpu` takes texts that are on a GPU already.
"""
