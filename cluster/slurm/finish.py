"""Ends the workers of a job, for the batch scripts:

python -P -m broadsheet.cluster.slurm.finish SCHEDULER_FILE
"""

from __future__ import annotations

import logging
import sys
from contextlib import suppress

from distributed import Client

_SECONDS = 10


def _hush() -> None:
    """Turn off Dask's log in this process: a worker whose heartbeat meets its end would log a traceback."""
    logging.getLogger("distributed").setLevel(logging.CRITICAL)


def main(scheduler_file: str) -> None:
    """Close the workers. If the scheduler does not answer, the script that started the workers ends them."""
    with suppress(OSError, ValueError), Client(scheduler_file=scheduler_file, timeout=_SECONDS) as client:
        client.run(_hush)
        client.run_on_scheduler(_hush)
        client.retire_workers(list(client.scheduler_info(n_workers=-1)["workers"]), close_workers=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
