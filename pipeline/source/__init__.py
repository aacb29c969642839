"""Where articles come from: files, memory, Dask DataFrames; finding, planning and reading them in chunks."""
