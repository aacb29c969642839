"""Blocks of records for tests: lines of every kind in files, and a reader of blocks that is the host's own."""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path

import pyarrow as pa

from broadsheet.pipeline.ingest.blocks import BlockRows
from broadsheet.pipeline.source.chunk import Chunk, Selection, numbered
from broadsheet.pipeline.source.format import Format
from broadsheet.pipeline.source.formats.record_format import RecordFormat
from broadsheet.pipeline.source.formats.records import Records
from broadsheet.pipeline.source.plan.plan import RangeEnd
from broadsheet.pipeline.source.read.read import Skipped
from broadsheet.pipeline.source.read.ring import RawBlock
from broadsheet.pipeline.telemetry.read_by import MANY_ODD

SLOT_BYTES = 64 << 10
"""Of readers for tests. A few lines of the files are longer."""

BAD = ("{", "", " \t", "[]", '{"text": 1, "label": "a"}', '{"text": "\\ud800", "label": "a"}', '{"text": null}')
RARE = ('{"te\\u0078t": "an escaped key", "label": "a"}', '{"text": "a", "label": "b", "id": {"x": [1, 2.50]}}')


class OnHost:
    """In place of a GPU. Refuses one block in `every`, by chance; none where that is 0. Bad rows are its odd ones."""

    def __init__(self, every: int, chance: random.Random, form: Format, path: str, selection: Selection) -> None:
        assert isinstance(form, RecordFormat)
        self.form, self.path, self.selection = form, path, selection
        self.every, self.chance = every, chance

    def read(self, block: RawBlock, held: memoryview, row: int) -> BlockRows | str:
        if self.every and self.chance.randrange(self.every) == 0:
            return MANY_ODD
        data = bytes(held)
        split = self.form.split(data, False)
        assert (split.consumed, block.lines) == (len(data), data.count(b"\n"))
        records = Records(data, split.starts, split.ends, split.starts + block.at, split.problems)
        chunk = self.form.chunk_of(records, self.path, 0, self.selection, None)
        return BlockRows(numbered(chunk, row), records.sizes, len(chunk.quarantine))


def written(path: Path, rows: int, chance: random.Random, others: float = 0.05) -> Path:
    """Lines, among them a share of others: bad, blank, rare, and longer than a slot. The last may lack its end."""
    lines = [chance.choice(["", " \n\n"]) if others else ""]
    for i in range(rows):
        text = "é" * chance.randrange(200) + chance.choice(["", "\n", '"', " ", "\u3000"])
        line = json.dumps({"id": i, "text": text, "label": chance.choice("ab")}, ensure_ascii=chance.random() < 0.5)
        if chance.random() < others:
            long = json.dumps({"text": "x" * chance.choice([SLOT_BYTES, 3 * SLOT_BYTES]), "label": "b"})
            line = chance.choice([*BAD, *RARE, long if chance.random() < 0.3 else " \n"])
        lines.append(line + chance.choice(["\n", "\r\n"]))
    data = "".join(lines).encode() + chance.choice([b"", b'{"text": "the end", "label": "b"}'])
    path.write_bytes(gzip.compress(data, 1) if path.suffix == ".gz" else data)
    return path


def told(items: list[Chunk | Skipped | RangeEnd]) -> list[object]:
    """All that is known of a range: rows, texts, quarantine, and the end."""
    everything: list[object] = []
    for item in items:
        if not isinstance(item, Chunk):
            everything.append(item)
            continue
        text = item.text if isinstance(item.text, pa.Array) else item.text.on_host()
        everything.append((item.name, item.sources, item.rows.to_pydict(), text.to_pylist(), item.is_blank.tolist()))
        everything.append((item.quarantine.to_pydict(), None if item.bad is None else item.bad.to_pydict()))
        everything.append([None if one is None else one.tolist() for one in (item.n_chars, item.truth)])
        by_name = (item.unknown_labels, item.not_copied)
        everything.append([{name: rows.tolist() for name, rows in one.items()} for one in by_name])
    return everything
