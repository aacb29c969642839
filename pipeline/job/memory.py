"""The memory that a job takes on each of its machines: the command, workers, processes that read, chunks in flight."""

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
"""Of the command with Dask's scheduler, of the process that forks workers, of a worker without a model, and of one
that reads: physical memory, as Linux divides it among those that share it (PSS). `tests/job/test_memory.py` compares
the sum with that of real jobs.
"""

_CUDA_BYTES = 500 * _MIB
"""Memory of the host that CUDA and CuPy take in a worker."""

_COPIES_OF_WORKER, _COPIES_OF_COMMAND = 3, 4
"""Of a model: as it came, as tensors, and as the engine has them; the command also has the file's content."""

_ROW_BYTES = 500
"""Of a row in flight beside its text: offsets, numbers, scores and what is written."""

_COPIES_OF_BLOCK = 4
"""Of a block that is parsed: as it came, as records, as columns, and as texts that are cut to what the model reads."""

_IN_FLIGHT = 0.5
"""The share of a worker's rows that are in flight in a short job: the others are written, or not read yet."""

_THREADS_THAT_READ = 16
"""Processes that read for a GPU's worker at most."""


@dataclass(frozen=True)
class JobMemory:
    """What a job takes on each machine, about; all in bytes but the counts.

    Attributes
    ----------
    whole : int
        All of it together.
    command : int
        The command itself; where no worker is started, with the work.
    workers, worker : int
        How many workers a machine has, 0 where the command labels by itself, and what each takes.
    model, in_flight : int
        Of this, in each worker: the models, and what is read, labelled and written at the same time.
    readers, reader : int
        How many processes read for each worker, and what each takes.
    shared : int
        What all workers have once: tables that are mapped from files.

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
    """What a job takes on a machine.

    Parameters
    ----------
    models : sequence of Model
        The models, which each worker has.
    rows : int or None
        Rows that the machine labels; None where that is not known.
    input_bytes : int
        Of the files that it reads.
    row_bytes : float
        Bytes of a row that are held while it is labelled: its text and what is copied.
    chunk_rows : int
        Rows in a chunk at most.
    workers : int
        Of the machine; 0 where the command labels by itself.
    on_gpu : bool
        Whether each worker has a GPU.

    """
    shared = sum(model.mapped_bytes for model in models)
    weights = sum(model.weight_bytes for model in models) - shared
    readers = _readers(max(1, workers)) if on_gpu else 0
    own_rows = MOST_CHUNKS * chunk_rows if rows is None else round(_IN_FLIGHT * rows / max(1, workers))
    most_bytes = max(MOST_BYTES, (readers + 8) * MOST_OF_ONE if on_gpu else 0)
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
    """How many processes read for each worker of a machine, as `cluster.plugin.read_for_a_gpu` has it."""
    cores = max(1, available_cores() // workers)
    return min(cores - cores // 8, _THREADS_THAT_READ)
