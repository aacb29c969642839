"""The values that the phases of a job pass on: what is requested, found, planned and done."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..engine.base import Backend
from ..model.several import Models
from ..options import Options
from ..output.columns import Columns
from ..output.folder import OutputFolder
from ..output.record import Fingerprint, Manifest, SavedPlan
from ..report.facts import Growth
from ..report.job import JobReport, Progress
from ..source.inputs import Given, JobInput, Source
from .tasks import Event, Job
from .update import Update
from .watchdog import Watchdog

if TYPE_CHECKING:
    from distributed import Client


@dataclass(frozen=True)
class Running:
    """A cluster that runs already. Its workers' devices determine the chunk size, and the workers may help to plan."""

    client: Client


@dataclass(frozen=True)
class OnDemand:
    """A cluster that is started while the job is planned; it ends with the job."""

    connect: Callable[[], AbstractContextManager[Client]]


Executor = Callable[["Client", Iterable[Source], Job, Watchdog, Callable[[], bool]], Iterator[Event]]
"""Runs the chunks of a job on a cluster, as `graph.classify_chunks` does, which `api` hands to it."""


@dataclass(frozen=True)
class Request:
    """What the user requests. folder: None for rows in memory. stop: called before each chunk is submitted."""

    source: Any
    folder: OutputFolder | None
    models: Models
    cluster: Running | OnDemand
    options: Options
    progress: Progress
    stop: Callable[[], bool]
    executor: Executor


@dataclass(frozen=True)
class Engines:
    """The models on every worker. keys: by which tasks find each. backend: that they share. seconds: the job waited."""

    keys: tuple[str, ...]
    backend: Backend
    seconds: float


@dataclass(frozen=True)
class Prepared:
    """A request whose input is found. identity: SHA-256 of the listing of its files, or of what identifies rows in
    memory. before: the manifest of a job that is resumed or updated. saved: its plan, with those of its updates, where
    it is there. update: the one that is begun or continued. growth: how the input differs from what was labelled.
    began, started: the same moment by `time.perf_counter` and in seconds since the epoch.
    """

    request: Request
    found: Given
    identity: str
    before: Manifest | None
    saved: SavedPlan | None
    update: Update | None
    growth: Growth | None
    began: float
    started: float


@dataclass(frozen=True)
class Planned:
    """A prepared job whose groups are known. seconds: planning took, without the loading of engines."""

    prepared: Prepared
    input: JobInput
    columns: Columns
    chunk_rows: int
    seconds: float


@dataclass(frozen=True)
class Executed:
    """A job whose chunks are done. counted: the digest of the entry of each chunk in the report's totals."""

    report: JobReport
    fingerprint: Fingerprint
    counted: dict[str, bytes]
