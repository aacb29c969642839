"""The names of folders and files in an output folder.

Everything but the parts begins with an underscore, and nothing else ends in `.parquet`: the folder itself is a dataset
for pandas, Polars, DuckDB and Dask. Names of a chunk's files end with the id of the job, so two jobs never share one.
"""

from __future__ import annotations

from typing import Final

PARTS, QUARANTINE, ENTRIES, RUNS = "parts", "_quarantine", "_entries", "_runs"
FOLDERS = (PARTS, QUARANTINE, ENTRIES, RUNS)
MANIFEST, PLAN, CLAIM, SUCCESS = "_manifest.json", "_plan.json", "_claim.json", "_SUCCESS"

VERSION: Final = 3
"""The version of this layout and of every file in it but the parts."""

OLD_MANIFEST = "manifest.json"
"""The manifest of version 1, by which such a folder is recognised and refused."""

PART_ENCODING = 3
"""The version of the encoding of parts: another encoding gives other bytes for the same rows."""

CHUNK_PATTERN = r"^part-\d{6,}-\d{7,}$"
JOB_PATTERN = r"^[0-9a-f]{16}$"
FILE_PATTERN = r"^(parts|_quarantine)/([^/.]+=[^/]+/)?part-\d{6,}-\d{7,}-[0-9a-f]{8}(\.[a-z0-9]+)+$"


def part_file(chunk: str, job: str) -> str:
    return f"{PARTS}/{_stem(chunk, job)}.parquet"


def quarantine_file(chunk: str, job: str) -> str:
    return f"{QUARANTINE}/{_stem(chunk, job)}.jsonl"


def entry_file(chunk: str, job: str) -> str:
    return f"{ENTRIES}/{_stem(chunk, job)}.json"


def closing_file(file: int, job: str) -> str:
    return f"{ENTRIES}/file-{file:06d}-{job[:8]}.json"


def is_closing(name: str) -> bool:
    """Whether an entry closes a file, by its name."""
    return name.startswith(f"{ENTRIES}/file-")


def of_job(name: str, job: str) -> bool:
    """Whether a chunk's file is of this job, by its name."""
    return name.partition(".")[0].endswith(f"-{job[:8]}")


def _stem(chunk: str, job: str) -> str:
    return f"{chunk}-{job[:8]}"
