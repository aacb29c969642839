"""The Dask graph: read -> infer -> write for each chunk, kept a window ahead of the workers.

Reads are unrestricted, so the scheduler queues them and memory is bounded by the chunks in flight; infer and write
follow the chunk to the worker that read it. Infer runs on the worker's one-thread `gpu` executor, so that reading chunk
i + 1, computing chunk i and writing chunk i - 1 overlap. A chunk whose text is with the client is one task.
"""

from __future__ import annotations

import itertools
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from queue import SimpleQueue
from typing import Any

import dask
from distributed import CancelledError, Client, Future, KilledWorker
from distributed.comm.core import CommClosedError
from distributed.scheduler import NoValidWorkerError, NoWorkerError

from pipeline import tasks
from pipeline.errors import BroadsheetError, SourceError
from pipeline.source.inputs import Loaded, Partition, Source, Unread
from pipeline.source.plan import Unit
from pipeline.tasks import Done, Job, SetAside

GPU_EXECUTOR = "gpu"
_MOST_LOSSES = 3
_SECONDS_BETWEEN_COUNTS = 1.0
_LEAST_WINDOW = 16
_WRITE_FIRST, _INFER_FIRST = 20, 10

_CONTINUE = "What is committed stays: start it again, then continue with --resume"
NO_SCHEDULER = f"the connection to the scheduler {{}} is lost. {_CONTINUE}"
NO_WORKERS = f"the cluster has lost all its workers and no other has joined. {_CONTINUE}"


def classify_chunks(client: Client, sources: Iterable[Source], job: Job) -> Iterator[Done | SetAside]:
    """Run every chunk, and yield each as it is done, in any order. `sources` is consumed as chunks finish.

    A chunk whose input cannot be read, or that kills its workers even when it runs alone, is set aside. Any other
    error, and with `job.strict` the first bad row, stops the job and is raised; committed chunks are kept.
    """
    run = _Run(client, job)
    waiting = iter(sources)
    suspects: list[Source] = []
    more = True
    try:
        while True:
            if more and len(run.live) <= run.window // 2:
                room = run.window - len(run.live)
                chunks = list(itertools.islice(waiting, room))
                more = len(chunks) == room
                run.submit(chunks)
                yield from _unread(chunks, job)
            if not run.live:
                if more:
                    continue  # the client could read none of these chunks
                break
            source, result = run.next_done()
            if more:
                run.release_spent()
            if isinstance(result, KilledWorker):
                suspects.append(source)  # perhaps not the cause: a worker that dies takes its other tasks with it
            else:
                yield result
        for source in suspects:
            run.submit([source])
            _, result = run.next_done()
            yield (
                SetAside(source.name, f"it kills every worker that takes it ({result})")
                if isinstance(result, KilledWorker)
                else result
            )
    finally:
        run.cancel()


def _unread(chunks: list[Source], job: Job) -> Iterator[SetAside]:
    for chunk in chunks:
        if isinstance(chunk, Unread):
            if job.strict:
                raise SourceError(chunk.reason)
            yield SetAside(chunk.name, chunk.reason)


class _Run:
    """The futures in flight, one for the last task of each chunk; results of earlier tasks stay on the worker."""

    def __init__(self, client: Client, job: Job) -> None:
        self.live: dict[Any, tuple[Future, Future | None, Source, int]] = {}
        self._spent: list[tuple[Future, Future | None]] = []
        self._client = client
        self._scheduler = client.scheduler.address
        self._job = job
        self._name = uuid.uuid4().hex[:8]
        self._count = itertools.count()
        self._ended: SimpleQueue[tuple[Any, Done | BaseException]] = SimpleQueue()
        self._window, self._asked = _LEAST_WINDOW, float("-inf")

    @property
    def window(self) -> int:
        """How many chunks to have in flight. Workers come and go, so they are counted again from time to time.

        Not before the first chunks are submitted: a small job has no others.
        """
        self._check_scheduler()
        if self.live and time.monotonic() - self._asked > _SECONDS_BETWEEN_COUNTS:
            threads = sum(self._client.nthreads().values())
            self._window, self._asked = max(4 * threads, _LEAST_WINDOW), time.monotonic()
        return self._window

    def submit(self, sources: list[Source], losses: int = 0) -> None:
        units = [s for s in sources if isinstance(s, Unit)]
        loaded = [s for s in sources if isinstance(s, Loaded)]
        partitions = [s for s in sources if isinstance(s, Partition)]
        if units:
            reads = self._map("read", tasks.read, units)
            self._add(units, self._infer_and_write(reads), losses)
        if partitions:
            frames = self._client.compute([p.frame for p in partitions])
            reads = self._map("read", tasks.read_partition, frames, [p.number for p in partitions])
            self._add(partitions, self._infer_and_write(reads), losses)
        if loaded:
            chunks = self._scatter(loaded)
            with dask.annotate(executor=GPU_EXECUTOR):
                self._add(loaded, self._map("infer-and-write", tasks.infer_and_write, chunks), losses, chunks)

    def _scatter(self, loaded: list[Loaded]) -> list[Future]:
        try:
            chunks: list[Future] = self._client.scatter(loaded, hash=False)
        except TimeoutError as error:
            raise BroadsheetError(NO_WORKERS) from error
        return chunks

    def _infer_and_write(self, reads: list[Future]) -> list[Future]:
        with dask.annotate(executor=GPU_EXECUTOR):
            inferred = self._map("infer", tasks.infer, reads, priority=_INFER_FIRST)
        return self._map("write", tasks.write, inferred, priority=_WRITE_FIRST)

    def _map(self, name: str, function: Any, *columns: Iterable[Any], priority: int = 0) -> list[Future]:
        first, *others = [list(column) for column in columns]
        keys = [(f"{name}-{self._name}", next(self._count)) for _ in first]
        jobs = [self._job] * len(first)
        futures: list[Future] = self._client.map(
            partial(tasks.reported, function), first, *others, jobs, key=keys, priority=priority, pure=False
        )
        return futures

    def _add(
        self,
        sources: Iterable[Source],
        futures: list[Future],
        losses: int,
        texts: Sequence[Future | None] = (),
    ) -> None:
        for source, future, text in zip(sources, futures, texts or [None] * len(futures), strict=True):
            self.live[future.key] = (future, text, source, losses)
            self._client.loop.add_callback(self._fetch, future)

    async def _fetch(self, future: Future) -> None:
        """Fetch a chunk's result as soon as it is done; Dask fetches those that are done together in one request."""
        try:
            self._ended.put((future.key, await self._client.gather(future, asynchronous=True)))
        except BaseException as error:  # any error of a task: without a result the job would wait for ever
            self._ended.put((future.key, error))

    def next_done(self) -> tuple[Source, Done | SetAside | KilledWorker]:
        """The next chunk to end. Raises what stops the job."""
        while True:
            key, result = self._ended.get()
            self._check_scheduler()
            future, text, source, losses = self.live.pop(key)
            self._spent.append((future, text))
            if not isinstance(result, BaseException) or isinstance(result, KilledWorker):
                return source, result
            if isinstance(result, CancelledError):
                if losses == _MOST_LOSSES:
                    raise BroadsheetError(
                        f"{source.name}: cancelled by the scheduler ({result}); continue with --resume"
                    )
                self.submit([source], losses + 1)  # its text was on a worker that has been lost
            elif isinstance(result, NoWorkerError | NoValidWorkerError):
                raise BroadsheetError(f"{NO_WORKERS} (waited {result.timeout:.0f} s)")
            elif isinstance(result, CommClosedError):
                raise BroadsheetError(NO_SCHEDULER.format(self._scheduler)) from result
            elif isinstance(result, SourceError) and not self._job.strict:
                return source, SetAside(source.name, str(result))
            else:
                raise result

    def _check_scheduler(self) -> None:
        """Fail at once where the scheduler is lost: a request would wait half a minute for it."""
        if self._client.status != "running":
            raise BroadsheetError(NO_SCHEDULER.format(self._scheduler))

    def cancel(self) -> None:
        if self.live and self._client.status == "running":
            self._client.cancel([future for future, *_ in self.live.values()])
        self.live.clear()
        self.release_spent()

    def release_spent(self) -> None:
        """Release the chunks that are done; those of a job's last window all at once, at its end.

        Dask's client sends one message every 10 ms, so releasing them one by one would delay the tasks of the next job.
        Released on the client's event loop, they go into one message.
        """
        spent, self._spent = self._spent, []
        self._client.loop.add_callback(spent.clear)
