"""docs/reading.md: the readers side by side."""

from __future__ import annotations

from typing import Any

from benchmarks.pages.markdown import machine, table

_HEAD = """# Speed of reading

Every figure comes from `benchmarks/results/readers.json`, recorded by `python -m benchmarks.readers`; `python -m
benchmarks.pages` makes this page from it. {machine}, DuckDB {duckdb}.

The same files, the same cores, in turns; medians of {repeats}, in thousands of rows a second. PyArrow and DuckDB read
the column of texts into memory. Broadsheet also checks each text, counts its characters, and drops what the model does
not read. The other half of each table is how much text each read for a second of processor time, decompression
included: so many cores could read so many times as much at most.
"""

_READERS = {"broadsheet": "Broadsheet", "pyarrow": "PyArrow", "duckdb": "DuckDB"}


def page(result: dict[str, Any]) -> str:
    about = result["about"]
    parts = [
        _HEAD.format(machine=machine(about, "python", "pyarrow"), duckdb=about["duckdb"], repeats=result["repeats"])
    ]
    for kind, title in (("short", "Short texts"), ("long", "Long texts")):
        each = next(iter(result[kind].values()))
        rows = (_row(suffix, found) for suffix, found in result[kind].items())
        size = each["text_bytes"] / each["rows"]
        parts.append(f"## {title}\n\n{each['rows']:,} rows of {size:,.0f} bytes on average, in four files.\n")
        names = " | ".join(_READERS.values())
        each_core = " | ".join(f"{name}, MB/s a core" for name in _READERS.values())
        parts.append(table(f"format | {names} | {each_core}", rows) + "\n")
    return "\n".join(parts)


def _row(suffix: str, found: dict[str, Any]) -> str:
    rates = [f"{found['rows_per_second'][name] / 1e3:,.0f}" for name in _READERS]
    each_core = [f"{found['text_bytes'] / found['processor_seconds'][name] / 1e6:,.0f}" for name in _READERS]
    return " | ".join([suffix, *rates, *each_core])
