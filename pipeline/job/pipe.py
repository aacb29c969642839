"""Labels rows from a pipe or from files in one process, and writes each as JSONL or CSV as soon as it is labelled.

A thread reads ahead. The rows that have arrived when the engine is free become the next batch. So a single line gets
its label within a few milliseconds, and lines that come fast are computed in batches as large as suits the engine.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from queue import Empty, Queue
from threading import Thread

import numpy as np
import pyarrow as pa

from ..engine.base import Engine
from ..engine.open import opened
from ..errors import SourceError
from ..labelling.learned import looked_up_by_each
from ..labelling.scored import score_chunk
from ..measures.accuracy import Confusion, confusion_of
from ..model.charcnn import Model
from ..model.several import Models, load_models
from ..options import Options
from ..output.columns import REASON, columns_of, every_row
from ..output.formats import PART_FORMATS, PartFormat, check_writable
from ..output.layout import PartNames
from ..output.record import LearnedFrom
from ..processes.threads import available_cores
from ..source.inputs import Paths, UnreadableRows, open_input, read_in_this_process
from ..source.memory.stdin import STDIN, Stdin
from ..source.plan.files import Files, takes_encoding
from ..source.plan.plan import RangeEnd
from ..source.rows.chunk import Chunk, RowRange, Selection, concat, first_chunks
from ..source.rows.compression import not_decoded
from ..source.sample import with_class_numbers
from .beginning import named_input, refuse_files

KINDS = ("jsonl", "csv")
"""The formats in which rows can go to a pipe one by one."""

_ROWS_A_CORE = 32
"""The rows in a batch for each core: a compute thread needs about a quarter of a second for them."""

_PIECES_AHEAD = 16


@dataclass
class Piped:
    """The counts of what went through a pipe.

    Attributes
    ----------
    models : Models
        The models that labelled the rows.
    rows_written, rows_filtered, rows_quarantined : int
        The number of rows that were written with a label, left out by `where`, and written with a reason.
    unlabelled : int
        The number of written rows to which the first model gives no label.
    seconds : float
        The time without loading the models.
    confusion : Confusion or None
        The confusion of the first model; None without true classes.
    learned : LearnedFrom or None
        The rows that the first model has learned from; None if that is unknown.
    doubtful : Counter of str
        The number of rows that the first model could hardly judge, by reason.
    not_decoded : Counter of str
        The number of rows that could not be decoded, by encoding.
    problems : list of str
        Messages about files that could not be read to their end.
    notes : list of str
        Messages about files that may have a fault.
    files : int
        The number of input files; 0 for other input.
    left_out : tuple of (str, str)
        The files that were skipped, each with the reason.

    """

    models: Models
    rows_written: int = 0
    rows_filtered: int = 0
    rows_quarantined: int = 0
    unlabelled: int = 0
    seconds: float = 0.0
    confusion: Confusion | None = None
    learned: LearnedFrom | None = None
    doubtful: Counter[str] = field(default_factory=Counter)
    not_decoded: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    files: int = 0
    left_out: tuple[tuple[str, str], ...] = ()

    @property
    def rows_read(self) -> int:
        return self.rows_written + self.rows_filtered + self.rows_quarantined


def pipe(
    source: Stdin | Paths,
    write: Callable[[bytes], None],
    *,
    model: str | Path | Model | Iterable[str | Path | Model],
    options: Options,
    kind: str = "jsonl",
) -> Piped:
    """Label every row of `source`, and write the rows in input order as soon as they are labelled.

    A row that cannot be labelled is written too: its label is null, and its column `reason` says why.

    Parameters
    ----------
    source : Stdin or Paths
        The input.
    write : callable
        Called with the bytes of the next rows.
    model : str, path or Model, or several
        As in `classify`.
    options : Options
        The options of the job.
    kind : str
        The format of the rows, one of KINDS.

    Raises
    ------
    UsageError
        For an option or a column that does not fit.
    SourceError
        With `options.strict` at the first bad row, after the rows before it.

    """
    # Load the models, and open the input.
    models = load_models(model, options.network, options.preparation)
    with opened(models.loaded, options.device, options.precision, options.kernels) as engines:
        batch_rows = engines[0].batch or _ROWS_A_CORE * available_cores()
        piped = Piped(models)
        began = time.perf_counter()
        selection, pieces = _opened(source, models, options, batch_rows, piped)
        labelling = _Columns(engines, selection, options, kind, piped)
        writer = _RowWriter(PART_FORMATS[kind], labelling.schema)
        # Label and write one batch after the other.
        for batch in _batches(pieces, batch_rows):
            table = labelling.of(batch)
            bad = _first_bad(table) if options.strict else None
            write(writer.bytes_of(table if bad is None else table.slice(0, bad)))
            if bad is not None:
                row = table.slice(bad, 1).to_pylist()[0]
                raise SourceError(f"{row['file']}: row {row['row']}: {row['reason']} (--strict stops here)")
            if options.strict and piped.problems:
                raise SourceError(f"{piped.problems[0]} (--strict stops here)")
        write(writer.bytes_of(labelling.schema.empty_table()))  # CSV has its header even without rows
        piped.seconds = time.perf_counter() - began
        return piped


def _opened(
    source: Stdin | Paths, models: Models, options: Options, batch_rows: int, piped: Piped
) -> tuple[Selection, Iterator[Chunk]]:
    """Return the selection with its columns resolved, and an iterator of the rows in input order.

    Parameters
    ----------
    source : Stdin or Paths
        The input.
    models : Models
        The models that label it.
    options : Options
        The options of the job.
    batch_rows : int
        The most rows to read at once.
    piped : Piped
        The counts, to which problems of files are added when they are met.

    """
    # Rows of stdin are read as they arrive.
    requested = options.selection(models)
    refuse_files(source, None, (), options)
    if isinstance(source, Stdin):
        selection = source.open(requested)
        return selection, _of_stdin(first_chunks(source.arriving(selection, batch_rows), options.limit))
    # Files are planned, and read in order.
    given = named_input(source, models, options)
    requested = with_class_numbers(given, requested)
    planned = open_input(given, requested, options.chunk_size or batch_rows, limit=options.limit)
    if isinstance(given, Files):
        piped.left_out, piped.files = given.left_out, len(given.found) + len(given.problems)
    piped.problems += [message for _, message in planned.problems]

    def read() -> Iterator[Chunk]:
        for item in read_in_this_process(planned):
            if isinstance(item, RangeEnd):
                piped.problems += [message for _, message in item.problems]
                piped.notes += [f"{path}: {note}" for path, note in item.notes]
            elif isinstance(item, UnreadableRows):
                piped.problems.append(item.reason)
            else:
                yield item

    return planned.selection, read()


def _of_stdin(chunks: Iterable[Chunk]) -> Iterator[Chunk]:
    row = 0
    for chunk in chunks:
        yield replace(chunk, sources=(RowRange(STDIN, row, chunk.rows_read),))
        row += chunk.rows_read


def _batches(pieces: Iterator[Chunk], batch_rows: int) -> Iterator[Chunk]:
    """Yield what has been read by the time that a batch is wanted, about `batch_rows` rows at the most.

    It waits only for the first row of a batch. An error of reading is raised after the rows before it.
    """
    # Read ahead in a thread.
    arrived: Queue[Chunk | BaseException | None] = Queue(_PIECES_AHEAD)

    def read() -> None:
        try:
            for piece in pieces:
                arrived.put(piece)
            arrived.put(None)
        except BaseException as error:
            arrived.put(error)

    Thread(target=read, name="broadsheet-pipe", daemon=True).start()  # it may wait for a line that never comes
    # Join the pieces that have arrived into a batch.
    item: Chunk | BaseException | None
    while True:
        held: list[Chunk] = []
        item = arrived.get()
        while isinstance(item, Chunk):
            held.append(item)
            if sum(chunk.rows_read for chunk in held) >= batch_rows:
                break
            try:
                item = arrived.get_nowait()
            except Empty:
                break
        if held:
            yield concat(held)
        if isinstance(item, BaseException):
            raise item
        if item is None:
            return


class _Columns:
    """Labels each batch, makes the rows to write, and counts them.

    Parameters
    ----------
    engines : list of Engine
        The engine of each model.
    selection : Selection
        The columns of the input.
    options : Options
        The options of the job.
    kind : str
        The format of the rows that are written, one of KINDS.
    piped : Piped
        The counts.

    Attributes
    ----------
    schema : pyarrow.Schema
        The schema of the rows that are written.

    """

    def __init__(self, engines: list[Engine], selection: Selection, options: Options, kind: str, piped: Piped) -> None:
        self._engines, self._piped = engines, piped
        self._columns = columns_of(selection, options.model_columns(piped.models), options.where)
        self.schema = self._columns.written.append(REASON)
        check_writable(self.schema, PartNames(kind), ())

    def of(self, batch: Chunk) -> pa.Table:
        """Return the rows to write: labelled ones for which `where` is true, and all that could not be labelled."""
        # Label the rows, and compare the labels with true classes.
        columns, piped = self._columns, self._piped
        scored = score_chunk(batch, self._engines, columns.scoring)
        chunk, first = scored.chunk, columns.models[0]
        if chunk.truth is not None:
            pairs = first.pairs(scored.predictions[0], chunk.truth)
            piped.confusion = confusion_of(pairs, first.classes, piped.confusion)
            if (found := looked_up_by_each([engine.model for engine in self._engines], chunk)[0]) is not None:
                learned = LearnedFrom(*first.learned(scored.predictions[0], chunk.truth, found))
                piped.learned = learned if piped.learned is None else piped.learned.plus(learned)
        # Choose the rows to write, and count all.
        piped.doubtful.update(scored.doubtful[0])
        table = columns.table(chunk, scored.predictions)
        chosen = columns.chosen(table)
        table = columns.of_written(table, chosen)
        piped.unlabelled += first.unlabelled(scored.predictions[0].take(chosen))
        piped.problems += chunk.problems
        piped.rows_written += len(table)
        piped.rows_filtered += len(chunk) - len(table)
        piped.rows_quarantined += len(chunk.quarantine)
        bad = chunk.quarantine.select(["file", "reason"]).to_pylist()
        encodings = (not_decoded(row["reason"]) for row in bad if takes_encoding(row["file"]))
        piped.not_decoded.update(name for name in encodings if name)
        return every_row(table, chunk)


class _RowWriter:
    """Turns rows into the bytes of one file that is written piece by piece, with at most one header."""

    def __init__(self, form: PartFormat, schema: pa.Schema) -> None:
        self._form = form
        self._header = form.write(schema.empty_table())
        self._wrote_header = False

    def bytes_of(self, table: pa.Table) -> bytes:
        data = bytes(self._form.write(table))
        if self._wrote_header:
            return data[len(self._header) :]
        self._wrote_header = True
        return data


def _first_bad(table: pa.Table) -> int | None:
    """Return the first row without a label, or None."""
    bad = np.flatnonzero(table.column(REASON.name).is_valid().to_numpy())
    return int(bad[0]) if len(bad) else None
