"""CUDA kernels in four generations, and the Python that compiles them, plans their memory and launches them.

README.md lists the files in the order in which to read them. `catalog`, `compile`, `json_keys`, `memory_plan`, `split`,
`storage`, `tables`, `tiles` and `work` need no GPU. All other files import CuPy or the driver's bindings.
"""
