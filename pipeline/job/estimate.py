"""Estimates what a job would take: it labels a sample of the input here, and computes the time and the disk space."""

from __future__ import annotations

import os
import shutil
import time
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Unpack

import numpy as np

from ..engine.base import Engine, Predictions, Texts
from ..engine.open import opened, why_no_gpu
from ..errors import UsageError
from ..labelling.pieces import in_pieces
from ..labelling.scored import ScoredChunk, Scoring, score, score_chunk, texts_of
from ..model.charcnn import Model
from ..model.layers import WHOLE
from ..model.several import Models, load_models
from ..options import OptionKeywords, Options, takes
from ..output.columns import Columns, columns_of
from ..output.folder import OutputFolder
from ..output.formats import check_writable, part_files, with_folders
from ..output.layout import PartNames
from ..output.object_store import place_of
from ..output.store import Location
from ..processes.threads import available_cores
from ..report.breakdown import MUCH_ASKED, asks
from ..report.facts import Growth
from ..source.inputs import Given
from ..source.plan.files import Files, divided
from ..source.plan.plan import files_in_ranges, part_name, parts_of
from ..source.read.readers import bytes_of
from ..source.rows.chunk import Chunk, concat
from ..source.rows.labels import NO_TRUTH
from ..source.rows.limits import chunk_rows as usual_chunk_rows
from ..source.sample import Sample, sample_input, slow_to_read, with_class_numbers
from .beginning import asked_update, named_input, refuse_files, rooted
from .memory import JobMemory, memory_of
from .waits import told_waits

SAMPLE_ROWS = 1000
_ENTRY_BYTES, _LABEL_BYTES = 1500, 200
"""The approximate size of a chunk's entry in bytes, and what each class adds to it."""

_CHUNK, _JOB = part_name(0, 0), "0" * 16
"""The names of a chunk and of a job, for a part that is made only to measure its size."""

_BATCHES, _RUNS, _PARTS = 4, 3, 5
"""What is measured: on a GPU, the batches of a run and the runs; on a CPU, the parts of the sample."""

_FEW = 100  # rows of the sample that an encoder labels alone
_WARM_UP = Texts.of([b"x"] * 32)
_MUCH_UNKNOWN, _MANY_CUT, _MANY_BAD = 0.2, 0.05, 0.01
"""Above these shares there is a warning: of characters outside the alphabet, of texts that are longer than the model
reads, and of texts that are empty or rows that cannot be labelled.
"""


@dataclass(frozen=True)
class Estimate:
    """The estimate of what a job would take, from `dry_run`.

    Attributes
    ----------
    files, bytes : int
        The input files, and their size.
    left_out : tuple of (str, str)
        The files that are skipped, each with the reason.
    problems : tuple of str
        What is wrong with other files.
    update : Growth or None
        With `update`, the changes since the job. The other figures are then about the files that the update labels.
    rows : int or None
        The number of rows of the input; None if it cannot be estimated.
    counted : bool
        Whether `rows` is exact and not estimated.
    sample_rows : int
        The number of rows in the sample, from up to 8 files, or places of a table, at even distances.
    labels, reasons : dict of str to int
        The sample's rows by label (of the first model, if there are several), and its rows without a label by reason.
    model, backend : str
        The model, and the device, precision and kernels that labelled the sample.
    device : str
        "cpu" or "cuda".
    no_gpu : str or None
        Why the CPU was chosen, if the device was "auto".
    rate : float
        The rows of the sample that one worker on this machine labels in a second, with the text in memory.
    slowest, fastest : float
        The rates of the slowest and the fastest of five parts of the sample, or of three runs on a GPU.
    workers : int
        The number of GPUs, or of machines like this one, that the job is to have.
    seconds, seconds_of_one : float or None
        The time to label all rows with all of these workers, and with one.
    seconds_range : tuple of float or None
        The smallest and the largest value of `seconds`, by the fastest and the slowest part of the sample.
    seconds_of_encoder : float or None
        For a chain, the time to label all rows with one worker and the chain's encoder alone.
    device_hours : float or None
        The GPU-hours, or the hours of a CPU core.
    output_bytes : int or None
        The size of the output.
    free_bytes : int or None
        The free space at the place of the output folder.
    memory : JobMemory
        The approximate memory on each machine: of the command, its workers, and its reader processes.
    price, cost : float or None
        The price of an hour of one GPU, or else of this machine, if it is given; and the cost of the whole job.
    warnings : tuple of str
        What to check before the job.

    Examples
    --------
    >>> estimate = broadsheet.dry_run("news.csv", text_column=["title", "body"])
    >>> estimate.rows, estimate.seconds > 0
    (100, True)

    """

    files: int
    bytes: int
    left_out: tuple[tuple[str, str], ...]
    problems: tuple[str, ...]
    update: Growth | None
    rows: int | None
    counted: bool
    sample_rows: int
    labels: dict[str, int]
    reasons: dict[str, int]
    model: str
    backend: str
    device: str
    no_gpu: str | None
    rate: float
    slowest: float
    fastest: float
    workers: int
    seconds: float | None
    seconds_of_one: float | None
    seconds_range: tuple[float, float] | None
    seconds_of_encoder: float | None
    device_hours: float | None
    output_bytes: int | None
    free_bytes: int | None
    memory: JobMemory
    price: float | None
    cost: float | None
    warnings: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the estimate as JSON values.

        Returns
        -------
        dict
            The attributes by name.

        """
        return asdict(self)


@takes(OptionKeywords)
def dry_run(
    source: Any,
    output: str | os.PathLike[str] | None = None,
    *,
    model: str | Path | Model | Iterable[str | Path | Model] = "ag-news",
    machines: int = 1,
    price: float | None = None,
    **options: Unpack[OptionKeywords],
) -> Estimate:
    """Estimate what a job would take, without running it. Nothing is written.

    About 1,000 rows are read, the first of up to 8 files at even distances in the listing, and labelled here. If the
    files have up to 64 MiB, their rows are counted; otherwise the number of rows is estimated from the files' sizes.

    Parameters
    ----------
    source, output, model
        As in `classify`. An iterator or a Dask DataFrame is refused, since it would have to be computed.
    machines : int
        The number of machines like this one that are to share the work. On each, `workers` workers have a GPU each, as
        far as there are GPUs: two that share one count as one GPU. On CPUs a worker more or less makes no difference to
        the time.
    price : float, optional
        The price of an hour of one GPU, or, without a GPU, of this machine.
    **options
        The options of `classify`.

    Returns
    -------
    Estimate
        Rows, time, size of the output, and warnings.

    Raises
    ------
    UsageError
        If `classify` would refuse the request before any work.
    SourceError
        If no file can be read.

    Examples
    --------
    >>> estimate = broadsheet.dry_run("news.csv", "labels", text_column=["title", "body"])
    >>> estimate.problems, estimate.labels["Sports"]
    ((), 50)

    """
    # Label some rows here, and measure how fast that is.
    settings, path, models, given, growth, sample = sampled(source, output, model, options)
    files = given if isinstance(given, Files) else Files((), (), ())
    columns = columns_of(sample.selection, settings.model_columns(models), settings.where)
    sampled_rows = with_folders(sample.chunk, settings.settings(1, models).names)
    with opened(models.loaded, settings.device, settings.precision, settings.kernels) as engines:
        judged, rates = _label(sampled_rows, engines, columns.scoring)
        backend = engines[0].backend
    # Count the devices, and find how the job would cut the input into chunks.
    on_gpu = backend.device == "cuda"
    units = machines * (_gpus_of(settings.workers or 1) if on_gpu else 1)
    bins = columns.models[0].counts(judged.predictions[0])
    rows, usual = sample.rows, usual_chunk_rows(backend.device, settings.cost_of_row(models))
    chunk_rows = settings.chunk_size or usual
    names = settings.settings(chunk_rows, models).names
    check_writable(columns.written, names, columns.models[0].classes)
    ranges = sum(parts_of(files.found, files_in_ranges(files.found, chunk_rows), chunk_rows))
    in_range = -(-(rows or chunk_rows) // max(1, ranges))
    # Estimate the size of a row in the output, and the time of all rows.
    row_bytes = _output_bytes(judged, columns, names, min(chunk_rows, in_range))
    rate = rates.whole
    # The time is unknown if the number of rows is, or if there are rows and none of the sample was labelled.
    computing = None if rows is None or not (rate or not rows) else rows / max(rate, 1e-9)

    def lasting(of_rate: float) -> float:
        return max((rows or 0) / max(of_rate, 1e-9) / units, sample.reading_seconds)

    # Put the figures together, and add warnings about what they show.
    estimate = Estimate(
        files=len(files.found),
        bytes=sum(file.size or 0 for file in files.found),
        left_out=files.left_out,
        problems=tuple(sample.problems),
        update=growth,
        rows=rows,
        counted=sample.counted,
        sample_rows=judged.chunk.rows_read,
        labels=dict(Counter({name: sum(counts) for name, counts in bins.items()}).most_common()),
        reasons=dict(Counter(judged.chunk.quarantine.column("reason").to_pylist()).most_common()),
        model=models.name,
        backend=str(backend),
        device=backend.device,
        no_gpu=why_no_gpu() if settings.device == "auto" and not on_gpu else None,
        rate=rate,
        slowest=rates.slowest,
        fastest=rates.fastest,
        workers=units,
        seconds=None if computing is None else max(computing / units, sample.reading_seconds),
        seconds_of_one=None if computing is None else max(computing, sample.reading_seconds),
        seconds_range=None if computing is None else (lasting(rates.fastest), lasting(rates.slowest)),
        seconds_of_encoder=_of_encoders(sampled_rows, models, settings, columns.scoring, rows),
        device_hours=None if computing is None else computing * (1 if on_gpu else available_cores()) / 3600,
        output_bytes=None if rows is None else round(rows * row_bytes),
        free_bytes=_free_bytes(path),
        memory=memory_of(
            models.loaded,
            None if rows is None else -(-rows // machines),
            sum(file.size or 0 for file in files.found) // machines,
            bytes_of(sampled_rows) / max(1, len(sampled_rows)),
            chunk_rows,
            settings.workers or 0,
            on_gpu,
        ),
        price=price,
        cost=None if price is None or computing is None else max(computing, sample.reading_seconds) / 3600 * price,
        warnings=(),
    )
    warnings = [*(growth.lines if growth else ())]
    warnings += _warnings(estimate, judged, settings, path, columns.scoring[0], models.first)
    warnings += [*files.remarks, *sample.notes, *filter(None, [slow_to_read(files.found)])]
    return replace(estimate, warnings=tuple(warnings))


def _gpus_of(workers: int) -> int:
    """Return how many of this machine's GPUs `workers` workers use."""
    import cupy

    return min(workers, int(cupy.cuda.runtime.getDeviceCount()))


def sampled(
    source: Any, output: str | os.PathLike[str] | None, model: Any, options: OptionKeywords, rows: int = SAMPLE_ROWS
) -> tuple[Options, Location | None, Models, Given, Growth | None, Sample]:
    """Return the request of a job, and a sample of its input. For an update, the sample is of the files that it labels.

    Parameters
    ----------
    source, output, model, options
        As in `dry_run`.
    rows : int
        The approximate limit of the rows to read.

    Raises
    ------
    UsageError, SourceError
        As in `dry_run`.

    """
    settings = rooted(source, Options(**options))
    path = None if output is None else place_of(output, settings.endpoint)
    models = load_models(model, settings.network, settings.preparation)
    refuse_files(source, path, [loaded.name for loaded in models.loaded], settings)
    with told_waits(warnings.warn):
        given = named_input(source, models, settings, whole_hash=settings.update and settings.hash == "full")
    if settings.shard is not None and isinstance(given, Files):
        given = divided(given, settings.shard, None)
    growth = None
    folder = OutputFolder(path) if settings.update and path is not None else None
    if folder and isinstance(given, Files) and (update := asked_update(folder, given, settings.changed)):
        growth, given = update.growth, replace(given, found=tuple(update.files))
    selection = with_class_numbers(given, settings.selection(models))
    return settings, path, models, given, growth, sample_input(given, selection, rows, settings.limit)


@dataclass(frozen=True)
class _Rates:
    """The rates of labelling, in rows per second.

    Attributes
    ----------
    whole : float
        The rate of all rows.
    slowest, fastest : float
        The rates of the slowest and the fastest part.

    """

    whole: float
    slowest: float
    fastest: float


def _label(chunk: Chunk, engines: list[Engine], scoring: Sequence[Scoring]) -> tuple[ScoredChunk, _Rates]:
    """Return the chunk with its labels, and the rates of calls that are large enough to be typical of the engines."""
    score(_WARM_UP, engines, scoring)
    timed: list[tuple[int, float]] = []

    def label(texts: Texts) -> tuple[Predictions, ...]:
        began = time.perf_counter()
        found = score(texts, engines, scoring)
        timed.append((len(texts), max(time.perf_counter() - began, 1e-9)))
        return found

    batch = engines[0].batch
    if batch is None or not len(chunk):
        size = max(1, -(-len(chunk) // _PARTS))
        in_parts = partial(in_pieces, label=label, tell=lambda _: None, least=size, seconds=0.0)
        judged = score_chunk(chunk, engines, scoring, compute=in_parts)
    else:  # the rate of a GPU depends on the batch
        judged = score_chunk(chunk, engines, scoring)
        texts = texts_of(concat([chunk] * -(-_BATCHES * batch // len(chunk))))
        for _ in range(_RUNS):
            label(texts)
    rates = [rows / seconds for rows, seconds in timed] or [0.0]
    whole = sum(rows for rows, _ in timed) / max(sum(seconds for _, seconds in timed), 1e-9)
    return judged, _Rates(whole, min(rates), max(rates))


def _of_encoders(
    chunk: Chunk, models: Models, settings: Options, scoring: Sequence[Scoring], rows: int | None
) -> float | None:
    """Return the seconds that the encoders of chains need for all rows on their own; None without chains.

    The rate is measured on a part of the sample.

    Parameters
    ----------
    chunk : Chunk
        The sample.
    models, settings, scoring
        The models, options and scoring of the job.
    rows : int, optional
        The number of rows of the input.

    """
    if not rows or not len(chunk) or not any(model.encoder and model.cascade for model in models.loaded):
        return None
    some = chunk.take(np.arange(len(chunk)) % -(-len(chunk) // _FEW) == 0)
    alone = [model.asking("all") if model.encoder else model for model in models.loaded]
    with opened(alone, settings.device, settings.precision, settings.kernels) as engines:
        return rows / max(_label(some, engines, scoring)[1].whole, 1e-9)


def _output_bytes(judged: ScoredChunk, columns: Columns, names: PartNames, chunk_rows: int) -> float:
    """Return the bytes of output for each row that is read, estimated from one part.

    chunk_rows: the rows of the part.
    """
    table = columns.table(judged.chunk, judged.predictions)
    part = table.slice(0, chunk_rows)
    if not len(part):
        return 0.0
    files = part_files(columns.of_written(part, columns.chosen(part)), names, _CHUNK, _JOB)
    entry = (_ENTRY_BYTES + _LABEL_BYTES * len(columns.models[0].classes)) / chunk_rows
    return (sum(len(data) for *_, data in files) / len(part) + entry) * len(table) / judged.chunk.rows_read


def _warnings(
    estimate: Estimate, judged: ScoredChunk, options: Options, path: Location | None, scoring: Scoring, model: Model
) -> Iterator[str]:
    """Yield what the user should check before the job.

    Parameters
    ----------
    estimate : Estimate
        The estimate of the job, without warnings.
    judged : ScoredChunk
        The sample, with its labels.
    options : Options
        The options of the job.
    path : Location, optional
        The output folder.
    scoring, model : Scoring, Model
        The first model, and what is asked of it.

    """
    # Warn about the texts of the sample.
    texts, chunk, rows = judged.predictions[0], judged.chunk, max(len(judged.chunk), 1)
    unknown = texts.unknown_chars.sum() / max(np.minimum(texts.n_chars, scoring.encodes(model)).sum(), 1)
    empty, cut = (texts.n_chars == 0).sum() / rows, texts.truncated.sum() / rows
    bad = len(chunk.quarantine)
    if unknown > _MUCH_UNKNOWN:
        yield f"{unknown:.0%} of the characters are outside the model's alphabet: it cannot judge such text"
    if empty > _MANY_BAD:
        yield f"{empty:.0%} of the texts are empty: their labels mean nothing"
    if cut > _MANY_CUT:
        some = "" if model.window == WHOLE else f"the {scoring.reads(model):,} characters that "
        yield f"{cut:.0%} of the texts are longer than {some}the model reads"
    if texts.asked > MUCH_ASKED * rows:
        yield f"faster with {asks(texts.asked / rows, model.second)}"
    if bad > _MANY_BAD * estimate.sample_rows:
        reason, count = next(iter(estimate.reasons.items()))
        yield f"{bad / estimate.sample_rows:.0%} of the rows cannot be labelled, {count:,} of {bad:,} for: {reason}"
    if options.label_column is not None and (chunk.truth is None or (chunk.truth == NO_TRUTH).all()):
        yield f"column {options.label_column!r} holds no class of the model in any row of the sample"
    # Warn about the output folder, and the space in it.
    if path is not None:
        try:
            OutputFolder(path).refuse_unless(options.resume, options.overwrite, options.update)
        except UsageError as error:
            yield error.message
    if (estimate.output_bytes or 0) > (estimate.free_bytes if estimate.free_bytes is not None else float("inf")):
        yield f"the output needs more space than is free in {path}"


def _free_bytes(path: Location | None) -> int | None:
    """Return the free space in the folder, or in the nearest existing folder above it."""
    if not isinstance(path, Path):
        return None
    return shutil.disk_usage(next(folder for folder in (path, *path.parents) if folder.is_dir())).free
