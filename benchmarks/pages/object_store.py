"""The section of docs/scaling.md on input in a bucket, beside the same files on disk."""

from __future__ import annotations

import statistics
from typing import Any

from benchmarks.pages.markdown import machine, table

_HEAD = (
    "files | stored MB | from disk, rows/s | from the bucket, rows/s | of disk | of the server's limit"
    " | of what the cores allow"
)


def section(result: dict[str, Any]) -> str:
    """What each corpus gave."""
    rows = []
    for found in result["corpora"]:
        rates = " | ".join(f"{found[place]['rows_per_second']:,.0f}" for place in ("disk", "bucket"))
        shares = f"{found['of_disk']:.0%} | {found['of_server']:.0%} | {_of_both(found):.0%}"
        rows.append(f"{found['corpus']} | {found['stored_bytes'] / 1e6:,.0f} | {rates} | {shares}")
    connections = result["corpora"][0]["server"]["connections"]
    return f"""## Input in a bucket

{machine(result["about"], "python", "pyarrow")}.

By `python -m benchmarks.object_store`, into `object_store.json`: files read in one process, without labelling, from
disk and from a bucket of an S3 server (SeaweedFS) on the same cores. The server's limit is what {connections}
connections get of it that throw away what they get. Server and reader share the
cores, so the last column divides the seconds from disk plus the server's at its limit by the seconds from the bucket:
100% is the most that these cores allow.

{table(_HEAD, rows)}
"""


def _of_both(found: dict[str, Any]) -> float:
    seconds = {of: statistics.median(found[of]["seconds"]) for of in ("disk", "bucket", "server")}
    return (seconds["disk"] + seconds["server"]) / seconds["bucket"]
