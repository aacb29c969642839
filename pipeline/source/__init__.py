"""Where articles come from: files, memory, Dask DataFrames; finding, planning and reading them in chunks."""

from pipeline.source.chunk import Chunk, Selection
from pipeline.source.read import read_unit

__all__ = ["Chunk", "Selection", "read_unit"]
