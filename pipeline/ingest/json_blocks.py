"""The records of a block of JSON Lines, read on a GPU: a chunk whose texts stay there.

The GPU takes a record only where it reads the same values as the host. The host reads the others one by one. Where they
are many, it reads the whole block.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import cupy as cp
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ..errors import BroadsheetError
from ..kernels.record_ops import NULL, PLAIN, DeviceKeys, Lines, Odd, RecordOperations, Values
from ..source.chunk import QUARANTINE_SCHEMA, Chunk, RowsByName, Selection, commonest_rows, unknown_labels
from ..source.format import Format
from ..source.formats.jsonl import Jsonl
from ..source.formats.records import Records
from ..source.labels import class_indices, labels_of, one_label_each
from ..source.read.ring import RawBlock
from ..telemetry.read_by import MANY_ODD, NO_MEMORY
from .blocks import BlockRows, keys_of
from .stream import fetched, stream
from .texts import GpuTexts

_MOST_ODD, _ODD_SHARE = 64, 0.01
"""Up to so many records of a block, or such a share of them, go to the host alone. Else the whole block does."""


@dataclass(frozen=True)
class _Found:
    """N records on the GPU, and their values.

    Attributes
    ----------
    block : uint8 [bytes]
        What holds the values.
    begins, sizes : uint32 [N]
        The records, as of `Lines`.
    values : Values
        Where the values are, those of the text column first.
    text_offsets : int64 [N + 1]
        Where the beginning of each text that the model reads goes.
    characters : int64 [N]
        Characters of the whole texts.
    offsets : int64 [columns * N + 1]
        Where each value of the columns on the host goes.
    odd : Odd
        Which records are left to the host.

    """

    block: cp.ndarray
    begins: cp.ndarray
    sizes: cp.ndarray
    values: Values
    text_offsets: cp.ndarray
    characters: cp.ndarray
    offsets: cp.ndarray
    odd: Odd

    def __len__(self) -> int:
        return len(self.begins)


class JsonBlocks:
    """Reads blocks of JSON Lines of one file.

    Parameters
    ----------
    lock : callable
        Page-locks a slot of the ring, by its number.
    form : Jsonl
        The format, bound to the file's columns.
    path : str
        The file.
    selection : Selection
        The columns that the job uses, as they are in this file.

    """

    def __init__(self, lock: Callable[[int], None], form: Format, path: str, selection: Selection) -> None:
        assert isinstance(form, Jsonl)
        self._lock, self._form, self._path, self._selection = lock, form, path, selection
        self._operations = RecordOperations(cp.cuda.Device())
        keys = keys_of(selection)
        assert keys is not None
        with stream():
            self._keys = DeviceKeys(keys)
        # The text column is on the host too where it is kept: whole, while the model may read only its beginning.
        own = selection.text[0]
        self._on_host = [name for name in selection.columns if name != own or name in selection.kept]

    def read(self, block: RawBlock, held: memoryview, row: int) -> BlockRows | str:
        """The rows of a block: as of `BlockReader`.

        Raises BroadsheetError where the GPU fails.
        """
        self._lock(block.slot)
        try:
            with stream():
                return self._read(block, np.frombuffer(held, np.uint8), row)
        except cp.cuda.memory.OutOfMemoryError:
            stream().synchronize()  # the block is being copied from its slot, which the reader fills next
            cp.get_default_memory_pool().free_all_blocks()
            return NO_MEMORY
        except (cp.cuda.runtime.CUDARuntimeError, cp.cuda.driver.CUDADriverError) as error:
            place = f"{self._path}, bytes {block.at:,} to {block.at + block.size:,}"
            raise BroadsheetError(f"GPU {cp.cuda.Device().id} failed on {place}: {error}") from error

    def _read(self, block: RawBlock, held: NDArray[np.uint8], row: int) -> BlockRows | str:
        on_gpu = cp.empty(len(held), np.uint8)
        on_gpu.data.copy_from_host_async(held.ctypes.data, len(held), cp.cuda.get_current_stream())
        # Find the lines, and the values of each as if none was blank.
        lines, blank = block.lines, cp.zeros(1, np.int32)
        every = Lines(cp.empty(lines, np.uint32), cp.empty(lines, np.uint32), cp.empty(lines, np.uint8), blank)
        self._operations.lines(on_gpu, lines, True, every)
        found = self._find(on_gpu, every.begins, every.sizes)
        blanks, odd, *ends = fetched(blank, found.odd.count, *self._ends(found))
        if blanks[0]:
            kept = cp.flatnonzero(every.is_record)
            found = self._find(on_gpu, every.begins[kept], every.sizes[kept])
            odd, *ends = fetched(found.odd.count, *self._ends(found))
        if odd[0] > max(_MOST_ODD, _ODD_SHARE * len(found)):
            return MANY_ODD
        if not odd[0]:
            return BlockRows(*self._chunk(found, ends, row))
        # Have the host read what the GPU leaves to it, and put its texts among the others.
        which, begins, bytes_of_each = fetched(found.odd.which, found.begins, found.sizes)
        rows = np.flatnonzero(which)
        on_host = self._read_on_host(held, block.at, begins[rows], bytes_of_each[rows])
        found = self._with_texts(found, rows, on_host)
        chunk, sizes = self._chunk(found, fetched(*self._ends(found)), row)
        return BlockRows(_with_rows_of_host(chunk, row, rows, on_host), sizes, len(rows))

    def _find(self, block: cp.ndarray, begins: cp.ndarray, sizes: cp.ndarray) -> _Found:
        """Begin to look for the values of records."""
        count = len(begins) * self._keys.columns
        values = Values(cp.empty(count, np.uint8), cp.empty(count, np.uint32), cp.empty(count, np.uint32))
        odd = Odd(cp.empty(len(begins), np.uint8), cp.zeros(1, np.int32))
        characters = cp.empty(len(begins), np.int64)
        longest = self._form.limits.field_bytes
        self._operations.objects(block, begins, sizes, longest, self._keys, values, odd)
        found = _Found(block, begins, sizes, values, cp.zeros(1, np.int64), characters, cp.zeros(1, np.int64), odd)
        return self._measured(found)

    def _measured(self, found: _Found) -> _Found:
        """The records with the places of their texts and of their other values."""
        operations, texts, others = self._operations, found.values.part(0, len(found)), self._values_on_host(found)
        return replace(
            found,
            text_offsets=operations.measure(found.block, texts, self._selection.reads, found.characters),
            offsets=operations.measure(found.block, others) if self._on_host else found.offsets,
        )

    def _values_on_host(self, found: _Found) -> Values:
        """The values of the columns on the host."""
        columns = self._keys.columns
        return found.values.part((columns - len(self._on_host)) * len(found), columns * len(found))

    def _ends(self, found: _Found) -> tuple[cp.ndarray, cp.ndarray]:
        """Where the texts end, and where the values on the host do: int64 [1] each."""
        return found.text_offsets[-1:], found.offsets[-1:]

    def _read_on_host(
        self, block: NDArray[np.uint8], at: int, begins: NDArray[np.uint32], sizes: NDArray[np.uint32]
    ) -> Chunk:
        """The records that the GPU leaves to the host, with numbers from 0. at: the byte of the file of the block."""
        firsts, own = begins.astype(np.int64), sizes.astype(np.int64)
        data = b"\n".join(block[first : first + size].tobytes() for first, size in zip(firsts, own, strict=True))
        starts = np.cumsum(np.append(0, own + 1))[:-1]
        limits = self._form.limits
        problems = {int(i): limits.long_line for i in np.flatnonzero(own > limits.field_bytes)}
        records = Records(data, starts, starts + own, firsts + at, problems)
        return self._form.chunk_of(records, self._path, 0, self._selection, None)

    def _with_texts(self, found: _Found, odd: NDArray[np.int64], on_host: Chunk) -> _Found:
        """The records with the texts that the host has found.

        Parameters
        ----------
        found : _Found
            The records.
        odd : ndarray
            int64, those that the host has read.
        on_host : Chunk
            These, with numbers from 0.

        """
        data, offsets = on_host.data, on_host.offsets
        rows = cp.asarray(odd[on_host.rows.column("row").to_numpy()])
        values, block = found.values, cp.concatenate([found.block, cp.asarray(data[offsets[0] : offsets[-1]])])
        values.kinds[rows] = PLAIN
        values.begins[rows] = cp.asarray((offsets[:-1] - offsets[0] + len(found.block)).astype(np.uint32))
        values.sizes[rows] = cp.asarray(np.diff(offsets).astype(np.uint32))
        return self._measured(replace(found, block=block))

    def _chunk(self, found: _Found, ends: list[NDArray[np.int64]], row: int) -> tuple[Chunk, NDArray[np.int64]]:
        """The chunk of all records, and the bytes of each.

        Parameters
        ----------
        found : _Found
            The records.
        ends : list of ndarray
            What `_ends` returned.
        row : int
            The number of the first record.

        """
        count, operations = len(found), self._operations
        text, others = (cp.empty(int(end[0]), np.uint8) for end in ends)
        operations.write(found.block, found.values.part(0, count), found.text_offsets, text)
        blank = cp.empty(count, np.uint8)
        operations.blank(text, found.text_offsets, blank)
        if self._on_host:
            operations.write(found.block, self._values_on_host(found), found.offsets, others)
        sizes, text_offsets, characters, is_blank, offsets, kinds, data = fetched(
            found.sizes, found.text_offsets, found.characters, blank,
            found.offsets, self._values_on_host(found).kinds, others,
        )  # fmt: skip
        columns = {}
        for number, name in enumerate(self._on_host):
            part = slice(number * count, (number + 1) * count)
            columns[name] = _strings(data, offsets[part.start : part.stop + 1], kinds[part] <= NULL)
        rows = self._rows(columns, count, row)
        chunk = Chunk(
            GpuTexts(text, text_offsets, is_blank.view(np.bool_)),
            rows,
            QUARANTINE_SCHEMA.empty_table(),
            n_chars=characters if self._selection.reads else None,
            bad=rows.slice(0, 0).drop_columns(["file", "row"]) if self._selection.kept else None,
        )
        return self._with_truth(chunk, columns), sizes.astype(np.int64)

    def _rows(self, columns: dict[str, pa.Array], count: int, row: int) -> pa.Table:
        """The table of `file`, `row` and the kept columns."""
        selection = self._selection
        names = dict(selection.class_names)
        arrays = [pa.repeat(pa.scalar(self._path, pa.string()), count), pa.array(np.arange(row, row + count))]
        for name, kind in zip(selection.kept, selection.row_schema.types[2:], strict=True):
            is_label = name in selection.labels
            arrays.append((labels_of(columns[name], names.get(name)) if is_label else columns[name]).cast(kind))
        return pa.table(arrays, selection.row_schema)

    def _with_truth(self, chunk: Chunk, columns: dict[str, pa.Array]) -> Chunk:
        """The chunk with the classes of the truth column, where there is one."""
        name, selection = self._selection.truth, self._selection
        if name is None:
            return chunk
        labels = one_label_each(labels_of(columns[name], dict(selection.class_names).get(name)), name)
        truth, _ = class_indices(labels, selection.classes, selection.rules)
        return replace(chunk, truth=truth, unknown_labels=unknown_labels(labels, truth, chunk.rows["row"].to_numpy()))


def _strings(data: NDArray[np.uint8], offsets: NDArray[np.int64], is_null: NDArray[np.bool_]) -> pa.LargeStringArray:
    validity = pa.array(~is_null).buffers()[1] if is_null.any() else None
    return pa.Array.from_buffers(pa.large_string(), len(is_null), [validity, pa.py_buffer(offsets), pa.py_buffer(data)])


def _with_rows_of_host(chunk: Chunk, first: int, odd: NDArray[np.int64], on_host: Chunk) -> Chunk:
    """The chunk of all records, in order.

    Parameters
    ----------
    chunk : Chunk
        All records, those of the host with their texts alone.
    first : int
        The number of the first record.
    odd : ndarray
        int64, which records are those of the host.
    on_host : Chunk
        These, with numbers from 0.

    """
    assert isinstance(chunk.text, GpuTexts)
    is_kept = np.ones(len(chunk), np.bool_)
    is_kept[odd] = False
    rows = odd[on_host.rows.column("row").to_numpy()]
    table = pa.concat_tables([chunk.rows.filter(pa.array(is_kept)), _numbered(on_host.rows, first + odd)])
    table = table.take(pa.array(np.argsort(table.column("row").to_numpy())))
    truth, n_chars = chunk.truth, chunk.n_chars
    if truth is not None and on_host.truth is not None:
        truth[rows] = on_host.truth
    if n_chars is not None and on_host.n_chars is not None:
        n_chars[rows] = on_host.n_chars
    is_kept[rows] = True
    # A record in quarantine has no text, so the texts of the others follow one another.
    offsets = np.append(chunk.text.offsets[:-1][is_kept], chunk.text.offsets[-1])
    return replace(
        chunk,
        text=GpuTexts(chunk.text.data, offsets, chunk.text.is_blank[is_kept]),
        rows=table,
        quarantine=_numbered(on_host.quarantine, first + odd),
        truth=None if truth is None else truth[is_kept],
        n_chars=None if n_chars is None else n_chars[is_kept],
        bad=on_host.bad,
        not_copied={key: first + odd[lines] for key, lines in on_host.not_copied.items()},
        unknown_labels=_in_order(
            [chunk.unknown_labels, {label: first + odd[lines] for label, lines in on_host.unknown_labels.items()}]
        ),
    )


def _in_order(parts: list[RowsByName]) -> RowsByName:
    return {name: np.sort(numbers) for name, numbers in commonest_rows(parts).items()}


def _numbered(table: pa.Table, numbers: NDArray[np.int64]) -> pa.Table:
    """The table with numbers[i] in place of each row number i."""
    return table.set_column(1, "row", pa.array(numbers[table.column("row").to_numpy()]))
