"""Estimates the memory of a job on each machine: the command, workers, reader processes, and chunks in flight."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..model.charcnn import Model
from ..processes.threads import available_cores
from ..source.read.readers import MOST_BYTES, MOST_CHUNKS, MOST_OF_ONE
from ..source.read.ring import SLOT_BYTES, SLOTS_EACH
from ..source.rows.limits import LIMITS

_MIB = 1 << 20

_COMMAND_BYTES, _STARTER_BYTES, _WORKER_BYTES, _READER_BYTES = 165 * _MIB, 75 * _MIB, 110 * _MIB, 60 * _MIB
"""The memory of four processes: the command with Dask's scheduler, the process that forks workers, a worker without a
model, and a reader process. It is physical memory, as Linux divides it among the processes that share it (PSS).
`tests/job/test_memory.py` compares the sum with that of real jobs.
"""

_CUDA_BYTES = 500 * _MIB
"""The host memory that CUDA and CuPy use in a worker."""

_COPIES_OF_WORKER, _COPIES_OF_COMMAND = 3, 4
"""The copies of a model: as loaded, as tensors, and as the engine holds it. The command also has the file's content."""

_ROW_BYTES = 500
"""The bytes of a row in flight without its text: offsets, numbers, scores, and the output."""

_COPIES_OF_BLOCK = 4
"""The copies of a block that is parsed: raw bytes, records, columns, and texts that are cut to the model's length."""

_IN_FLIGHT = 0.5
"""The share of a worker's rows that are in flight in a short job. The others are written, or not read yet."""

_MOST_READERS = 16
"""The largest number of reader processes for a GPU's worker."""


@dataclass(frozen=True)
class JobMemory:
    """The approximate memory of a job on each machine. All figures except the counts are in bytes.

    Attributes
    ----------
    whole : int
        The whole memory.
    command : int
        The memory of the command. If no worker is started, this includes the work.
    workers, worker : int
        The number of workers on a machine (0 if the command itself labels), and the memory of each.
    model, in_flight : int
        The parts of a worker's memory for its models, and for the rows that are read, labelled and written at a time.
    readers, reader : int
        The number of reader processes for each worker, and the memory of each.
    shared : int
        The memory that all workers share: tables that are mapped from files.

    """

    whole: int
    command: int
    workers: int
    worker: int
    model: int
    in_flight: int
    readers: int
    reader: int
    shared: int


def memory_of(
    models: Sequence[Model],
    rows: int | None,
    input_bytes: int,
    row_bytes: float,
    chunk_rows: int,
    workers: int,
    on_gpu: bool,
) -> JobMemory:
    """Estimate the memory of a job on a machine.

    Parameters
    ----------
    models : sequence of Model
        The models, which every worker holds.
    rows : int or None
        The number of rows that the machine labels; None if it is unknown.
    input_bytes : int
        The size of the files that the machine reads.
    row_bytes : float
        The bytes of a row that are held while it is labelled: its text and the copied columns.
    chunk_rows : int
        The largest number of rows in a chunk.
    workers : int
        The number of workers on the machine; 0 if the command itself labels.
    on_gpu : bool
        Whether each worker has a GPU.

    """
    shared = sum(model.mapped_bytes for model in models)
    weights = sum(model.weight_bytes for model in models) - shared
    readers = _readers(max(1, workers)) if on_gpu else 0
    own_rows = MOST_CHUNKS * chunk_rows if rows is None else round(_IN_FLIGHT * rows / max(1, workers))
    most_bytes = max(MOST_BYTES, (readers + 8) * MOST_OF_ONE if on_gpu else 0)  # the room that `WorkerState` makes
    held_rows = min(own_rows, MOST_CHUNKS * chunk_rows, most_bytes / max(1.0, row_bytes))
    blocks = 0 if on_gpu else min(input_bytes // max(1, workers), (available_cores() + 1) * LIMITS.block_bytes)
    in_flight = round(held_rows * (row_bytes + _ROW_BYTES)) + _COPIES_OF_BLOCK * blocks
    model = _COPIES_OF_WORKER * weights
    work = model + in_flight + (_CUDA_BYTES if on_gpu else 0)
    worker = _WORKER_BYTES + work if workers else 0
    command = _COMMAND_BYTES + (_STARTER_BYTES + _COPIES_OF_COMMAND * weights if workers else work)
    reader = _READER_BYTES + SLOTS_EACH * SLOT_BYTES if readers else 0
    whole = command + max(1, workers) * readers * reader + workers * worker + shared
    return JobMemory(whole, command, workers, worker, model, in_flight, readers, reader, shared)


def _readers(workers: int) -> int:
    """Return the number of reader processes for each worker of a machine, as in `cluster.plugin.read_for_a_gpu`."""
    cores = max(1, available_cores() // workers)
    return min(cores - cores // 8, _MOST_READERS)
