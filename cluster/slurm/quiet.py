"""A preload of workers: keeps an error of Dask's own out of a job's log.

When a worker ends, a thread of it that waits for its nanny may find the queue between them closed, and Dask logs that
the "worker process died unexpectedly", with a traceback. Nothing else of the worker's process logs by that name.
"""

from __future__ import annotations

import logging

logging.getLogger("distributed.nanny").setLevel(logging.CRITICAL)
