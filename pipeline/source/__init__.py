"""The sources of articles: files, memory, Dask DataFrames. Finding, planning and reading them in chunks."""
