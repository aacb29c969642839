"""`label(text)` in DuckDB's SQL (the extra `select`)."""

from .pipeline.duckdb import register as register
