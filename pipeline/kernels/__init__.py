"""CUDA kernels, one file an operation, in four generations; `ops` launches them, `compile` builds them without a GPU.

`ops`, `weights`, `network` and `small_batches` need CuPy or a driver; everything else here needs no GPU.
"""
