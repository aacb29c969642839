"""A Dask worker preload: engines that only sleep, several in a process, each standing in for a GPU.

BROADSHEET_STUB_SLOTS says how many. `settle` says on a running worker how long a chunk takes, and whether chunks are
really read and written; everything else, of the scheduler and of the client, is the product's own.
"""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from typing import Any

import msgspec
import pyarrow as pa
from distributed import Worker

from benchmarks.stand_in import StandIn
from broadsheet.cluster.settings import GPU_EXECUTOR
from broadsheet.pipeline.engine.base import Predictions
from broadsheet.pipeline.job.worker import STATE
from broadsheet.pipeline.labelling.engines import ENGINES
from broadsheet.pipeline.output.layout import PartNames
from broadsheet.pipeline.output.local_store import LocalStore
from broadsheet.pipeline.output.record import Entry, FileRecord
from broadsheet.pipeline.source.chunk import Chunk, Selection, bad_rows_table
from broadsheet.pipeline.source.plan.plan import Unit
from broadsheet.pipeline.telemetry.spans import span

SLOTS = "BROADSHEET_STUB_SLOTS"

_seconds = 0.0
_own = STATE.read, STATE.commit


class Sleeper(StandIn):
    """Labels everything class 0 after a while."""

    def classify(
        self, texts, top_k=1, all_scores=False, spans=None, each_kernel=False, handed_over=None
    ) -> Predictions:
        with span("kernels", spans, "compute", self.device_name):
            time.sleep(_seconds)
        return super().classify(texts, top_k, all_scores)


def _one_row(unit: Unit, selection: Selection, *_: Any) -> Chunk:
    """In place of reading: the planned rows, of one letter each."""
    rows = pa.table([["stub"] * unit.rows, list(range(unit.rows))], selection.row_schema)
    return Chunk(pa.array([b"x"] * unit.rows, pa.large_binary()), rows, bad_rows_table("", []))


def _not_written(store: LocalStore, table: pa.Table, quarantine: pa.Table, about: Entry, names: PartNames) -> Entry:
    """In place of writing: an entry as long as a real one."""
    ((name, _),) = names.files(about.chunk, about.job, about.labels)
    return msgspec.structs.replace(about, files=(FileRecord(name, len(table), 0, "0" * 64),))


def settle(seconds: float, reading_and_writing: bool) -> None:
    """How long a chunk takes from now on, and whether it is really read and written."""
    global _seconds
    _seconds = seconds
    STATE.read, STATE.commit = _own if reading_and_writing else (_one_row, _not_written)


def dask_setup(worker: Worker) -> None:
    """Called by Dask when the worker starts."""
    worker.executors[GPU_EXECUTOR] = ThreadPoolExecutor(int(os.environ[SLOTS]), "broadsheet-gpu")
    ENGINES.computing = nullcontext()  # one engine at a time computes in a real worker, here all sleep at once
    ENGINES.open_engine = Sleeper
