"""Reads the records of a block of a file on a GPU, and makes a chunk whose texts stay there.

The GPU takes a record only if it reads the same values as the host would. The host reads the other records, called odd
ones, together. If there are many, or it is not certain where records begin, the host reads the whole block.

The steps of `RecordBlocks.read`, in order::

    copy the block -> find the lines -> find the values -> have the host read odd records -> write the chunk
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import cupy as cp
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ..errors import BroadsheetError
from ..kernels.driver_calls import copy
from ..kernels.record_ops import (
    FIELD,
    NULL,
    Lines,
    Odd,
    RecordOperations,
    RecordsToRead,
    Values,
    device_table,
    zeros,
)
from ..source.formats.csv import Csv
from ..source.formats.jsonl import Jsonl
from ..source.formats.record_format import RecordFormat, Text
from ..source.read.ring import RawBlock
from ..source.rows.assemble import true_classes
from ..source.rows.chunk import (
    QUARANTINE_SCHEMA,
    Chunk,
    OffHost,
    RowsByName,
    Selection,
    joined_rows,
    noted_rows,
)
from ..source.rows.columns import copied
from ..source.rows.format import Format
from ..source.rows.labels import labels_of, one_label_each
from ..telemetry.read_by import MANY_ODD, NO_MEMORY, UNCLEAR
from .blocks import BlockRows
from .csv_records import CsvRecords
from .host_records import read_alone
from .json_records import JsonRecords
from .record_finder import RecordFinder
from .text_records import TextRecords
from .texts import GpuTexts
from .workspace import Workspace, lasting, workspace

_MOST_ODD, _ODD_SHARE = 64, 0.01
"""Up to this number of records of a block, or this share of them, the host reads only the odd records. Otherwise it
reads the whole block.
"""


@dataclass(frozen=True)
class _Found:
    """N records on the GPU, and their values.

    Attributes
    ----------
    block : uint8 [bytes]
        The bytes that hold the values.
    begins, sizes : uint32 [N]
        The records (see `Lines`).
    values : Values
        The places of the values. Those of the text columns come first.
    text_block : uint8 [bytes]
        The bytes that hold the texts.
    texts : Values
        The places of the texts, [N].
    text_offsets : int64 [N + 1]
        Where the part of each text that the model reads is to be written.
    characters : int64 [N]
        The characters of the whole texts.
    offsets : int64 [columns * N + 1]
        Where each value of the columns on the host is to be written.
    odd : Odd
        The records that are left to the host.

    """

    block: cp.ndarray
    begins: cp.ndarray
    sizes: cp.ndarray
    values: Values
    text_block: cp.ndarray
    texts: Values
    text_offsets: cp.ndarray
    characters: cp.ndarray
    offsets: cp.ndarray
    odd: Odd

    def __len__(self) -> int:
        return len(self.begins)


class RecordBlocks:
    """Reads the blocks of one file of records.

    Parameters
    ----------
    lock : callable
        Page-locks a slot of the ring, by the slot's number.
    form : RecordFormat
        The format, bound to the file's columns.
    path : str
        The file.
    selection : Selection
        The columns that the job uses, as they are in this file.

    """

    def __init__(self, lock: Callable[[int], None], form: Format, path: str, selection: Selection) -> None:
        assert isinstance(form, RecordFormat)
        self._lock, self._form, self._path = lock, form, path
        self._byte_steps = selection.byte_steps
        self._counts_characters = bool(selection.reads or selection.byte_steps)
        # The GPU prepares all texts, including those of records that the host reads.
        self._selection = replace(selection, preparations=(), byte_steps=(), only_prepared=False)
        self._operations = RecordOperations(cp.cuda.Device())
        self._finder = _finder(form, selection)
        # If text columns are also used like other columns, they are needed on the host too, and whole, while the
        # model may read only the beginning. All columns from the first such column on are copied to the host.
        others = {*selection.kept_columns, selection.truth}
        used = [name not in selection.text or name in others for name in selection.columns]
        self._host_columns = selection.columns[used.index(True) :] if any(used) else ()

    def read(self, block: RawBlock, held: memoryview, row: int) -> BlockRows | str:
        """Return the rows of a block (see `BlockReader`).

        Raises BroadsheetError if the GPU fails.
        """
        self._lock(block.slot)
        try:
            with workspace() as space:
                try:
                    return self._read(space, block, np.frombuffer(held, np.uint8), row)
                except cp.cuda.memory.OutOfMemoryError:
                    space.settle()  # the block is still being copied from its slot, which the reader fills next
                    cp.get_default_memory_pool().free_all_blocks()
                    return NO_MEMORY
        except (cp.cuda.runtime.CUDARuntimeError, cp.cuda.driver.CUDADriverError) as error:
            place = f"{self._path}, bytes {block.at:,} to {block.at + block.size:,}"
            raise BroadsheetError(f"GPU {cp.cuda.Device().id} failed on {place}: {error}") from error

    def _read(self, space: Workspace, block: RawBlock, held: NDArray[np.uint8], row: int) -> BlockRows | str:
        on_gpu = cp.empty(len(held), np.uint8)
        copy(on_gpu.data.ptr, held.ctypes.data, len(held), space.stream)
        every = self._lines(space, on_gpu)
        if every is None:
            return UNCLEAR
        found = self._find(on_gpu, every.begins, every.sizes)  # this is right if no line is skipped
        skipped, odd, *ends = space.fetch(every.skipped, found.odd.count, *self._ends(found))
        if skipped[0]:
            record_lines = cp.flatnonzero(every.is_record)
            found = self._find(on_gpu, every.begins[record_lines], every.sizes[record_lines])
            odd, *ends = space.fetch(found.odd.count, *self._ends(found))
        if odd[0] > max(_MOST_ODD, _ODD_SHARE * len(found)):
            return MANY_ODD
        if not odd[0]:
            return BlockRows(*self._chunk(space, found, ends, row))
        # Have the host read what the GPU leaves to it, and put its texts among the others.
        which, begins, bytes_of_each = space.fetch(found.odd.which, found.begins, found.sizes)
        rows = np.flatnonzero(which)
        host_rows = read_alone(
            self._form, self._path, self._selection, held, block.at, begins[rows], bytes_of_each[rows]
        )
        if host_rows is None:
            return UNCLEAR
        found = self._with_texts(found, rows, host_rows)
        chunk, sizes = self._chunk(space, found, space.fetch(*self._ends(found)), row)
        return BlockRows(_with_rows_of_host(chunk, row, rows, host_rows), sizes, len(rows))

    def _lines(self, space: Workspace, block: cp.ndarray) -> Lines | None:
        """Return the lines of a block. Return None if it ends within quotes, or if it is not certain which bytes are
        within quotes.
        """
        rules = self._finder.rules
        ends = self._operations.line_ends(block, rules)
        is_inside = zeros(1, np.uint8) if ends.insides is None else ends.insides[-1:]
        count, unclear, is_open = (int(one[0]) for one in space.fetch(ends.up_to[-1:], ends.unclear, is_inside))
        if unclear or is_open:
            return None
        begins, sizes, is_record = (cp.empty(count, kind) for kind in (np.uint32, np.uint32, np.uint8))
        lines = Lines(begins, sizes, is_record, zeros(1, np.int32))
        self._operations.lines(block, ends, rules, lines)
        return lines

    def _find(self, block: cp.ndarray, begins: cp.ndarray, sizes: cp.ndarray) -> _Found:
        """Start to look for the values of records."""
        count = len(begins) * len(self._selection.columns)
        values = Values(cp.empty(count, np.uint8), cp.empty(count, np.uint32), cp.empty(count, np.uint32))
        odd = Odd(cp.empty(len(begins), np.uint8), zeros(1, np.int32))
        characters = cp.empty(len(begins), np.int64)
        longest = self._form.limits.field_bytes
        self._finder.find(self._operations, RecordsToRead(block, begins, sizes, longest, values, odd))
        operations, quote, texts = self._operations, self._finder.rules.quote, len(self._selection.text)
        text_block, joined = block, values.part(0, texts * len(begins))
        if texts > 1:
            text_block, joined = operations.join(block, joined, quote, texts)
        others = self._values_on_host(values, len(begins))
        return _Found(
            block,
            begins,
            sizes,
            values,
            text_block,
            joined,
            operations.measure(text_block, joined, quote, self._selection.reads, characters),
            characters,
            operations.measure(block, others, quote) if self._host_columns else zeros(1, np.int64),
            odd,
        )

    def _values_on_host(self, values: Values, records: int) -> Values:
        """Return the values of the columns on the host, which are the last ones."""
        columns = len(self._selection.columns)
        return values.part((columns - len(self._host_columns)) * records, columns * records)

    def _ends(self, found: _Found) -> tuple[cp.ndarray, cp.ndarray]:
        """Return where the texts end, and where the values on the host end: int64 [1] each."""
        return found.text_offsets[-1:], found.offsets[-1:]

    def _with_texts(self, found: _Found, odd: NDArray[np.int64], host_rows: Chunk) -> _Found:
        """Return the records with the texts that the host has found.

        Parameters
        ----------
        found : _Found
            The records.
        odd : ndarray
            int64, the numbers of the records that the host has read.
        host_rows : Chunk
            The rows of these records, with numbers from 0.

        """
        data, offsets = host_rows.data, host_rows.offsets
        rows = cp.asarray(odd[host_rows.rows.column("row").to_numpy()])
        kinds, begins, sizes = (array.copy() for array in found.texts)
        kinds[rows] = FIELD
        begins[rows] = cp.asarray((offsets[:-1] - offsets[0] + len(found.text_block)).astype(np.uint32))
        sizes[rows] = cp.asarray(np.diff(offsets).astype(np.uint32))
        texts = Values(kinds, begins, sizes)
        block = cp.concatenate([found.text_block, cp.asarray(data[offsets[0] : offsets[-1]])])
        ends = self._operations.measure(block, texts, self._finder.rules.quote, self._selection.reads, found.characters)
        return replace(found, text_block=block, texts=texts, text_offsets=ends)

    def _chunk(
        self, space: Workspace, found: _Found, ends: list[NDArray[np.int64]], row: int
    ) -> tuple[Chunk, NDArray[np.int64]]:
        """Return the chunk of all records, and the bytes of each record.

        Parameters
        ----------
        space : Workspace
            The memory of the block.
        found : _Found
            The records.
        ends : list of ndarray
            The values that `_ends` returned.
        row : int
            The number of the first record.

        """
        count, operations, quote = len(found), self._operations, self._finder.rules.quote
        # Write the texts, and the values of the columns on the host, one after the other.
        text, others = lasting(int(ends[0][0])), cp.empty(int(ends[1][0]), np.uint8)
        operations.write(found.text_block, found.texts, quote, found.text_offsets, text)
        blank = cp.empty(count, np.uint8)
        operations.blank(text, found.text_offsets, blank)
        if self._host_columns:
            operations.write(found.block, self._values_on_host(found.values, count), quote, found.offsets, others)
        # Prepare the texts for models that need this.
        prepared = [self._prepared(text, found.text_offsets, table, strips) for _, table, strips in self._byte_steps]
        # Copy what the host needs. Each copy waits for the GPU, so there is only one.
        sizes, text_offsets, characters, is_blank, offsets, kinds, data, *prepared_offsets = space.fetch(
            found.sizes, found.text_offsets, found.characters, blank,
            found.offsets, self._values_on_host(found.values, count).kinds, others, *(ends for _, ends in prepared),
        )  # fmt: skip
        # Make the table of rows and the chunk.
        columns = {}
        for number, name in enumerate(self._host_columns):
            part = slice(number * count, (number + 1) * count)
            columns[name] = _strings(data, offsets[part.start : part.stop + 1], kinds[part] <= NULL)
        columns |= {name: pa.repeat(pa.scalar(value, pa.string()), count) for name, value in self._selection.of_path}
        rows = self._rows(columns, count, row)
        chunk = Chunk(
            GpuTexts(text, text_offsets, is_blank.view(np.bool_)),
            rows,
            QUARANTINE_SCHEMA.empty_table(),
            n_chars=characters if self._counts_characters else None,
            bad=rows.slice(0, 0).drop_columns(["file", "row"]) if self._selection.kept_columns else None,
            prepared={
                name: GpuTexts(texts, ends, is_blank.view(np.bool_))
                for (name, _, _), (texts, _), ends in zip(self._byte_steps, prepared, prepared_offsets, strict=True)
            },
        )
        return self._with_truth(chunk, columns), sizes.astype(np.int64)

    def _prepared(
        self, text: cp.ndarray, offsets: cp.ndarray, table: bytes, strips: bool
    ) -> tuple[cp.ndarray, cp.ndarray]:
        """Start to prepare texts.

        Parameters
        ----------
        text : uint8 [bytes]
            The texts.
        offsets : int64 [N + 1]
            Where each text begins, and where the last one ends.
        table, strips
            See `Selection.byte_steps`.

        Returns
        -------
        text, offsets
            The prepared texts and their offsets. `text` may have bytes after the last text.

        """
        operations, quote = self._operations, self._finder.rules.quote
        mapped = lasting(len(text))
        operations.map_bytes(text, device_table(np.frombuffer(table, np.uint8)), mapped)
        if not strips:
            return mapped, offsets
        found, stripped = operations.strip(mapped, offsets), lasting(len(text))
        ends = operations.measure(mapped, found, quote)
        operations.write(mapped, found, quote, ends, stripped)
        return stripped, ends

    def _rows(self, columns: dict[str, pa.Array], count: int, row: int) -> pa.Table:
        """Return the table of `file`, `row` and the kept columns."""
        selection = self._selection
        names = dict(selection.class_names)
        arrays = [pa.repeat(pa.scalar(self._path, pa.string()), count), pa.array(np.arange(row, row + count))]
        for name, kind in zip(selection.kept_columns, selection.row_schema.types[2:], strict=True):
            is_label = name in selection.labels
            arrays.append(copied(labels_of(columns[name], names.get(name)) if is_label else columns[name], kind))
        return pa.table(arrays, selection.row_schema)

    def _with_truth(self, chunk: Chunk, columns: dict[str, pa.Array]) -> Chunk:
        """Return the chunk with the classes of the truth column, if there is one."""
        name, selection = self._selection.truth, self._selection
        if name is None:
            return chunk
        labels = one_label_each(labels_of(columns[name], dict(selection.class_names).get(name)), name)
        truth = true_classes(labels, selection, chunk.rows["row"].to_numpy())
        return replace(chunk, truth=truth.classes, unknown_labels=truth.unknown, mapped_labels=truth.mapped)


def _finder(form: RecordFormat, selection: Selection) -> RecordFinder:
    """Return the finder for the values of a format."""
    if isinstance(form, Jsonl):
        return JsonRecords(selection)
    if isinstance(form, Csv):
        return CsvRecords(form, selection)
    assert isinstance(form, Text)
    return TextRecords(selection)


def _strings(data: NDArray[np.uint8], offsets: NDArray[np.int64], is_null: NDArray[np.bool_]) -> pa.LargeStringArray:
    validity = pa.array(~is_null).buffers()[1] if is_null.any() else None
    return pa.Array.from_buffers(pa.large_string(), len(is_null), [validity, pa.py_buffer(offsets), pa.py_buffer(data)])


def _with_rows_of_host(chunk: Chunk, first: int, odd: NDArray[np.int64], host_rows: Chunk) -> Chunk:
    """Return the chunk of all records, in order.

    Parameters
    ----------
    chunk : Chunk
        All records. Those that the host has read have only their texts.
    first : int
        The number of the first record.
    odd : ndarray
        int64, the numbers of the records that the host has read.
    host_rows : Chunk
        The rows of these records, with numbers from 0.

    """
    is_kept = np.ones(len(chunk), np.bool_)
    is_kept[odd] = False
    rows = odd[host_rows.rows.column("row").to_numpy()]
    table = pa.concat_tables([chunk.rows.filter(pa.array(is_kept)), _numbered(host_rows.rows, first + odd)])
    table = table.take(pa.array(np.argsort(table.column("row").to_numpy())))
    truth, n_chars = chunk.truth, chunk.n_chars
    if truth is not None and host_rows.truth is not None:
        truth[rows] = host_rows.truth
    if n_chars is not None and host_rows.n_chars is not None:
        n_chars[rows] = host_rows.n_chars
    is_kept[rows] = True
    return replace(
        chunk,
        text=_without_empty(chunk.text, is_kept),
        prepared={name: _without_empty(texts, is_kept) for name, texts in chunk.prepared.items()},
        rows=table,
        quarantine=_numbered(host_rows.quarantine, first + odd),
        truth=None if truth is None else truth[is_kept],
        n_chars=None if n_chars is None else n_chars[is_kept],
        bad=host_rows.bad,
        not_copied={key: first + odd[lines] for key, lines in host_rows.not_copied.items()},
        unknown_labels=noted_rows(_in_order(chunk.unknown_labels, host_rows.unknown_labels, first + odd)),
        mapped_labels=_in_order(chunk.mapped_labels, host_rows.mapped_labels, first + odd),
    )


def _without_empty(texts: OffHost | pa.Array, is_kept: NDArray[np.bool_]) -> GpuTexts:
    """Return the texts that are kept. A record in quarantine has an empty text, so the other texts stay consecutive."""
    assert isinstance(texts, GpuTexts)
    return GpuTexts(texts.data, np.append(texts.offsets[:-1][is_kept], texts.offsets[-1]), texts.is_blank[is_kept])


def _in_order(rows: RowsByName, host_rows: RowsByName, numbers: NDArray[np.int64]) -> RowsByName:
    """Return the numbers of rows by label, with those of the host, whose row i has the number numbers[i]."""
    others = {label: numbers[lines] for label, lines in host_rows.items()}
    return {label: np.sort(every) for label, every in joined_rows([rows, others]).items()}


def _numbered(table: pa.Table, numbers: NDArray[np.int64]) -> pa.Table:
    """Return the table with numbers[i] in place of each row number i."""
    return table.set_column(1, "row", pa.array(numbers[table.column("row").to_numpy()]))
