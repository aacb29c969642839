"""What a job would take: a sample of its input is labelled here, and time and disk follow from it."""

from __future__ import annotations

import os
import shutil
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any, Unpack

import numpy as np

from ..engine.base import Engine, Predictions, Texts
from ..engine.open import opened, why_no_gpu
from ..errors import UsageError
from ..labelling.scored import ScoredChunk, Scoring, score, score_chunk, texts_of
from ..model.charcnn import Model
from ..model.several import Models, load_models
from ..options import OptionKeywords, Options, takes
from ..output.columns import columns_of
from ..output.folder import OutputFolder
from ..output.formats import check_writable, part_files
from ..output.object_store import place_of
from ..output.store import Location
from ..processes.threads import available_cores
from ..source.chunk import Chunk, concat
from ..source.columns import NO_TRUTH
from ..source.find.files import Files, divided
from ..source.inputs import Given, identify
from ..source.limits import chunk_rows as usual_chunk_rows
from ..source.plan.plan import part_name
from ..source.plan.sample import Sample, sample_input, slow_to_read
from .beginning import refuse_files

SAMPLE_ROWS = 1000
_ENTRY_BYTES, _LABEL_BYTES = 1500, 200
_CHUNK, _JOB = part_name(0, 0), "0" * 16
_BATCHES = 4
_WARM_UP = Texts.of([b"x"] * 32)
_MUCH_UNKNOWN, _MANY_CUT, _MANY_BAD = 0.2, 0.05, 0.01


@dataclass(frozen=True)
class Estimate:
    """What a job would take, as `dry_run` finds it.

    Attributes
    ----------
    files, bytes : int
        The input files, and their size.
    left_out, problems : tuple of str
        Files that belong to no format, and what is wrong with others.
    rows : int or None
        Rows of the input; None where they cannot be estimated.
    counted : bool
        Whether `rows` is exact, rather than estimated.
    sample_rows : int
        Rows that were read for it, from up to 20 places at even distances.
    labels, reasons : dict of str to int
        Of the sample: rows by label, of several models the first one's, and rows without a label by reason.
    model, backend : str
        The model, and the device, precision and kernels that labelled the sample.
    device : str
        "cpu" or "cuda".
    no_gpu : str or None
        Why the CPU was chosen, where the device was "auto".
    rate : float
        Rows of the sample labelled in a second, by one worker on this machine, with the text in memory.
    workers : int
        GPUs, or machines like this one, that the job is to have.
    seconds, seconds_of_one : float or None
        The time to label all rows with them, and with one.
    device_hours : float or None
        GPU-hours, or hours of a CPU core.
    output_bytes : int or None
        Size of the output.
    free_bytes : int or None
        Free space where the output folder would be.
    warnings : tuple of str
        What to look at before the job.

    Examples
    --------
    >>> estimate = broadsheet.dry_run("news.csv", text_column=["title", "body"])
    >>> estimate.rows, estimate.seconds > 0
    (100, True)

    """

    files: int
    bytes: int
    left_out: tuple[str, ...]
    problems: tuple[str, ...]
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
    workers: int
    seconds: float | None
    seconds_of_one: float | None
    device_hours: float | None
    output_bytes: int | None
    free_bytes: int | None
    warnings: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the estimate as JSON values.

        Returns
        -------
        dict
            The attributes by name.

        """
        return asdict(self)


@dataclass
class _SampleFigures:
    """A sample with its labels. bytes: of its parts, for each row read. rate: rows a second, 0 where there are none."""

    labels: Counter[str]
    reasons: Counter[str]
    rows: int = 0
    truths: int = 0
    empty: int = 0
    cut: int = 0
    chars: int = 0
    unknown: int = 0
    bytes: float = 0.0
    rate: float = 0.0


@takes(OptionKeywords)
def dry_run(
    source: Any,
    output: str | os.PathLike[str] | None = None,
    *,
    model: str | Path | Model | Iterable[str | Path | Model] = "ag-news",
    machines: int = 1,
    **options: Unpack[OptionKeywords],
) -> Estimate:
    """Find out what a job would take, without running it: nothing is written.

    About 1,000 rows are read, from up to 20 places at even distances in the input, and labelled in this process. Rows
    of Parquet files and of up to 64 MiB of other files are counted; those of others are estimated by their size.

    Parameters
    ----------
    source, output, model
        As for `classify`; an iterator or a Dask DataFrame is refused, since it would have to be computed.
    machines : int
        Machines like this one that are to share the work. Of each, `workers` GPUs are used; on CPUs a worker more or
        less makes no difference.
    **options
        Each as `classify` takes it.

    Returns
    -------
    Estimate
        Rows, time, size of the output, and warnings.

    Raises
    ------
    UsageError
        For what `classify` would refuse before any work.
    SourceError
        Where no file can be read.

    Examples
    --------
    >>> estimate = broadsheet.dry_run("news.csv", "labels", text_column=["title", "body"])
    >>> estimate.problems, estimate.labels["Sports"]
    ((), 50)

    """
    settings, path, models, found, sample = sampled(source, output, model, options)
    files = found if isinstance(found, Files) else Files((), (), ())
    with opened(models.loaded, settings.device, settings.precision, settings.kernels) as engines:
        labelled = _label(sample, models, engines, settings)
        engine = engines[0]
    on_gpu = engine.backend.device == "cuda"
    units = machines * (settings.workers or 1 if on_gpu else 1)
    rows, rate = sample.rows, labelled.rate
    computing = None if rows is None or not (rate or not rows) else rows / max(rate, 1e-9)
    estimate = Estimate(
        files=len(files.found),
        bytes=sum(file.size or 0 for file in files.found),
        left_out=files.left_out,
        problems=tuple(sample.problems),
        rows=rows,
        counted=sample.counted,
        sample_rows=labelled.rows,
        labels=dict(labelled.labels.most_common()),
        reasons=dict(labelled.reasons.most_common()),
        model=models.name,
        backend=str(engine.backend),
        device=engine.backend.device,
        no_gpu=why_no_gpu() if settings.device == "auto" and not on_gpu else None,
        rate=rate,
        workers=units,
        seconds=None if computing is None else max(computing / units, sample.reading_seconds),
        seconds_of_one=None if computing is None else max(computing, sample.reading_seconds),
        device_hours=None if computing is None else computing * (1 if on_gpu else available_cores()) / 3600,
        output_bytes=None if rows is None else round(rows * labelled.bytes),
        free_bytes=shutil.disk_usage(_existing(path)).free if isinstance(path, Path) else None,
        warnings=(),
    )
    reads = settings.model_columns(models)[0].scoring.reads(models.first.length)
    warnings = [*_warnings(estimate, sample, labelled, settings, path, reads)]
    if slow := slow_to_read(files.found):
        warnings.append(slow)
    return replace(estimate, warnings=tuple(warnings))


def sampled(
    source: Any, output: str | os.PathLike[str] | None, model: Any, options: OptionKeywords, rows: int = SAMPLE_ROWS
) -> tuple[Options, Location | None, Models, Given, Sample]:
    """What a job is asked to do, and about so many rows of its input. Arguments and errors are those of `dry_run`."""
    settings = Options(**options)
    path = None if output is None else place_of(output, settings.endpoint)
    models = load_models(model, settings.network)
    refuse_files(source, path, [each.name for each in models.loaded], settings)
    found = identify(
        source, len(models.first.alphabet), models.first.length, root=settings.root, endpoint=settings.endpoint
    )
    if settings.shard is not None and isinstance(found, Files):
        found = divided(found, settings.shard, None)
    return settings, path, models, found, sample_input(found, settings.selection(models), rows, settings.limit)


def _label(sample: Sample, models: Models, engines: list[Engine], options: Options) -> _SampleFigures:
    """Label the sample, and measure how long that takes and how large its parts are."""
    found = _SampleFigures(Counter(), Counter())
    columns = columns_of(sample.selection, options.model_columns(models), options.where)
    usual = usual_chunk_rows(engines[0].backend.device, models.cost)
    chunk_rows = options.chunk_size or usual
    names = options.settings(chunk_rows, models).names
    check_writable(columns.written, names, columns.models[0].labels)
    seconds, timed, size = 0.0, 0, 0
    for readable in _joined(sample.chunks):
        judged, typical, taken = _timed(readable, engines, columns.scoring)
        seconds, timed = seconds + taken, timed + typical
        chunk, predictions = judged.chunk, judged.predictions[0]
        table = columns.table(chunk, judged.predictions)
        found.rows += chunk.rows_read
        found.labels.update({name: sum(bins) for name, bins in columns.models[0].counts(predictions).items()})
        found.reasons.update(chunk.quarantine.column("reason").to_pylist())
        found.empty += int((predictions.n_chars == 0).sum())
        found.cut += int(predictions.truncated.sum())
        found.chars += int(np.minimum(predictions.n_chars, columns.scoring[0].reads(models.first.length)).sum())
        found.truths += 0 if chunk.truth is None else int((chunk.truth != NO_TRUTH).sum())
        found.unknown += int(predictions.unknown_chars.sum())
        for at in range(0, len(table), chunk_rows):
            part = table.slice(at, chunk_rows)
            files = part_files(columns.of_written(part, columns.chosen(part)), names, _CHUNK, _JOB)
            entry = _ENTRY_BYTES + _LABEL_BYTES * len(found.labels)
            size += sum(len(data) for *_, data in files) + entry * len(part) // chunk_rows
    found.bytes = size / max(found.rows, 1)
    found.rate = timed / seconds if seconds else 0.0
    return found


def _joined(chunks: Sequence[Chunk]) -> Iterator[Chunk]:
    """As few chunks as their columns allow."""
    for _, same in groupby(chunks, key=lambda chunk: (chunk.rows.schema, chunk.ids is None)):
        yield concat(list(same))


def _timed(chunk: Chunk, engines: list[Engine], scoring: Sequence[Scoring]) -> tuple[ScoredChunk, int, float]:
    """A scored chunk; and rows and seconds of a call that is large enough to be typical of the engines."""
    seconds = 0.0

    def timed(texts: Texts) -> tuple[Predictions, ...]:
        nonlocal seconds
        began = time.perf_counter()
        found = score(texts, engines, scoring)
        seconds = time.perf_counter() - began
        return found

    score(_WARM_UP, engines, scoring)
    scored = score_chunk(chunk, engines, scoring, compute=timed)
    if engines[0].batch is None:
        return scored, len(chunk), seconds
    typical = concat([chunk] * -(-_BATCHES * engines[0].batch // max(len(chunk), 1)))
    timed(texts_of(typical))
    return scored, len(typical), seconds


def _warnings(
    estimate: Estimate, sample: Sample, labelled: _SampleFigures, options: Options, path: Location | None, length: int
) -> Iterator[str]:
    """What to look at before the job."""
    bad = sum(labelled.reasons.values())
    rows = max(labelled.rows - bad, 1)
    unknown = labelled.unknown / max(labelled.chars, 1)
    if unknown > _MUCH_UNKNOWN:
        yield f"{unknown:.0%} of the characters are outside the model's alphabet: it cannot judge such text"
    if labelled.empty > _MANY_BAD * rows:
        yield f"{labelled.empty / rows:.0%} of the texts are empty: their labels mean nothing"
    if labelled.cut > _MANY_CUT * rows:
        yield f"{labelled.cut / rows:.0%} of the texts are longer than the {length:,} characters that the model reads"
    if bad > _MANY_BAD * labelled.rows:
        reason, count = labelled.reasons.most_common(1)[0]
        yield f"{bad / labelled.rows:.0%} of the rows cannot be labelled, {count:,} of {bad:,} for: {reason}"
    if options.truth_column is not None and not labelled.truths:
        yield f"column {options.truth_column!r} holds no class of the model in any row of the sample"
    if path is not None:
        try:
            OutputFolder(path).refuse_unless(options.resume, options.overwrite, options.update)
        except UsageError as error:
            yield error.message
    if (estimate.output_bytes or 0) > (estimate.free_bytes if estimate.free_bytes is not None else float("inf")):
        yield f"the output needs more space than is free in {path}"


def _existing(path: Path) -> Path:
    """The folder itself, or the nearest one above it that exists."""
    return path if path.is_dir() else _existing(path.parent)
