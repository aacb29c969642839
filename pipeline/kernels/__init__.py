"""CUDA kernels, one file an operation, in three generations; `ops` launches them, `compile` builds them without a GPU.

Importing this package or `compile`, `catalog`, `tiles`, `memory_plan` needs no GPU; `ops` and `weights` need CuPy.
"""
