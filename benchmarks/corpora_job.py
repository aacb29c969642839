"""Run one job of `benchmarks.corpora`, with the checkout of Broadsheet on PYTHONPATH, and print its figures as JSON.

The job runs twice on one cluster. The figures are those of the second run, when the processes have allocated the memory
that they need.
"""

from __future__ import annotations

import json
import shutil
import sys
from typing import Any

from broadsheet.cluster import connect
from broadsheet.pipeline import classify


def main(inputs: str, out: str, options: dict[str, Any]) -> dict[str, Any]:
    """Run the job twice, and return the figures of the second run."""
    with connect(options["where"], workers=options["workers"], protocol=options["protocol"]) as client:
        given = {"model": options["model"], "network": options["network"], "chunk_size": options["chunk_rows"]}
        first, second = (classify(inputs, out, overwrite=True, client=client, **given).to_dict() for _ in range(2))
    shutil.rmtree(out)
    breakdown = second["breakdown"]
    figures = {name: second[name] for name in ("chunks", "seconds", "timings")}
    figures |= {name: breakdown[name] for name in ("window", "rows_per_second", "busy", "verdict")}
    figures |= {
        "rows": second["rows_written"],
        "labels": second["models"][0]["labels"],
        "read_by": second.get("read_by"),
    }
    shares = [device["shares"] for device in breakdown["devices"]]
    return figures | {"shares": shares, "first_rows_per_second": first["breakdown"]["rows_per_second"]}


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], sys.argv[2], json.loads(sys.argv[3]))))
