"""CUDA kernels, one file an operation, in four generations; `ops` launches them, `compile` builds them without a GPU.

`ops`, `weights`, `network`, `small_batches` and `tensor_map` need CuPy or a driver; everything else here needs no GPU.
"""
