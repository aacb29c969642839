"""A process that runs a job, or its part of one. `processes.py` starts it.

Usage: python -m broadsheet.pipeline.train.process CONNECTION (a file descriptor)
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import torch
import torch.distributed as dist

from ..errors import BroadsheetError
from ..processes.child import parent_of
from ..processes.messages import Closed, packed, receive, send, unpacked
from .group import ProcessGroup
from .job import Outcome
from .loop import device_of, run
from .processes import Part
from .progress import Step, Told, TrainingStopped

_SECONDS_BETWEEN_STEPS = 0.2  # the least time between two reports of a step


@contextmanager
def joined(part: Part) -> Iterator[ProcessGroup]:
    """Yield the group of the processes of a run, after all of them have joined."""
    torch.set_num_threads(part.threads)
    cuda = device_of(part.job).type == "cuda"
    if cuda:
        # A worker that may use only its own GPU, by CUDA_VISIBLE_DEVICES, sees this GPU as number 0.
        torch.cuda.set_device(0 if "CUDA_VISIBLE_DEVICES" in os.environ and not part.here else part.number)
    if part.size > 1:
        dist.init_process_group("nccl" if cuda else "gloo", part.meeting, rank=part.rank, world_size=part.size)
    yield ProcessGroup(part.rank, part.size)
    if part.size > 1:
        dist.destroy_process_group()


def main(descriptor: str) -> None:
    """Run a part, and send its reports and its outcome, or its error, to the process that started this one."""
    # Connect to that process.
    connection = parent_of(descriptor)
    sending = threading.Lock()
    stop = threading.Event()
    told = time.monotonic()

    def answer(message: Told | Outcome | BaseException | None) -> None:
        with sending:
            send(connection, packed(message))

    def tell(what: Told) -> None:
        nonlocal told
        now = time.monotonic()
        if part.rank == 0 and (not isinstance(what, Step) or now - told >= _SECONDS_BETWEEN_STEPS):
            told = now
            answer(what)

    def listen() -> None:
        """Wait for a message: any message means that the run must stop."""
        with suppress(Closed):
            while True:
                receive(connection)
                stop.set()

    # Receive the part, and listen for a request to stop. Ignore Ctrl-C, which the starting process handles.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    part: Part
    part, examples = unpacked(receive(connection))
    threading.Thread(target=listen, daemon=True).start()
    # Run the part. The first process of the group sends the outcome.
    try:
        with joined(part) as group:
            outcome = run(part.job, examples, tell, stop.is_set, group)
        answer(outcome if part.rank == 0 else None)
    except (TrainingStopped, BroadsheetError) as error:
        answer(error)
    except BaseException as error:
        answer(RuntimeError(f"{type(error).__name__}: {error}\n{traceback.format_exc(limit=-8)}"))
    os._exit(0)  # skips the cleanup of a failed group, which may wait for the other processes


if __name__ == "__main__":
    main(sys.argv[1])
