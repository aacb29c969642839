"""Blocks of records for tests: files with lines of every kind, and a reader that reads blocks on the host."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pyarrow as pa

from broadsheet.pipeline.ingest.blocks import BlockRows
from broadsheet.pipeline.source.formats.record_format import RecordFormat
from broadsheet.pipeline.source.formats.records import Records
from broadsheet.pipeline.source.plan.plan import Plan, Range, RangeEnd, Start
from broadsheet.pipeline.source.read.read import Skipped, read_range
from broadsheet.pipeline.source.read.ring import RawBlock
from broadsheet.pipeline.source.rows.chunk import Chunk, Selection, numbered
from broadsheet.pipeline.source.rows.format import Format
from broadsheet.pipeline.telemetry.read_by import MANY_ODD, UNCLEAR

SLOT_BYTES = 64 << 10
"""The slot size of the readers that tests use. A few lines of the files are longer than this."""

BAD = ("{", "", " \t", "[]", '{"text": 1, "label": "a"}', '{"text": "\\ud800", "label": "a"}', '{"text": null}')
RARE = ('{"te\\u0078t": "an escaped key", "label": "a"}', '{"text": "a", "label": "b", "id": {"x": [1, 2.50]}}')


class OnHost:
    """Stands in for a GPU reader, and counts bad rows.

    It refuses one block in `every` at random, or none if `every` is 0.
    """

    def __init__(self, every: int, chance: random.Random, form: Format, path: str, selection: Selection) -> None:
        assert isinstance(form, RecordFormat)
        self.form, self.path, self.selection = form, path, selection
        self.every, self.chance = every, chance

    def read(self, block: RawBlock, held: memoryview, row: int) -> BlockRows | str:
        if self.every and self.chance.randrange(self.every) == 0:
            return MANY_ODD
        data = bytes(held)
        split = self.form.split(data, False)
        if split.consumed < len(data):  # the last record is incomplete, as where a quote is misplaced
            return UNCLEAR
        records = Records(data, split.starts, split.ends, split.starts + block.at, split.problems)
        chunk = self.form.chunk_of(records, self.path, 0, self.selection, None)
        return BlockRows(numbered(chunk, row), records.sizes, len(chunk.quarantine))


def written(path: Path, rows: int, chance: random.Random, others: float = 0.05) -> Path:
    """Write records in the format that the file's name asks for, and return the path.

    A share `others` of the records is bad, blank, rare, or longer than a slot. The last record may lack its end.
    """
    draw, header, end = _FORMATS[path.name.removesuffix(".gz").rpartition(".")[2]]
    lines = [header, b"" if not others else chance.choice([b"", b"\n\n"])]
    for i in range(rows):
        lines += [draw(i, chance, others), chance.choice([b"\n", b"\r\n"])]
    data = b"".join(lines) + chance.choice([b"", end])
    path.write_bytes(gzip.compress(data, 1) if path.suffix == ".gz" else data)
    return path


def _text(chance: random.Random) -> str:
    return "é" * chance.randrange(200) + chance.choice(["", "\n", '"', " ", "\u3000"])


def _long(chance: random.Random) -> str:
    return "x" * chance.choice([SLOT_BYTES, 3 * SLOT_BYTES])


def _json_line(i: int, chance: random.Random, others: float) -> bytes:
    text = _text(chance)
    line = json.dumps({"id": i, "text": text, "label": chance.choice("ab")}, ensure_ascii=chance.random() < 0.5)
    if chance.random() < others:
        long = json.dumps({"text": _long(chance), "label": "b"})
        line = chance.choice([*BAD, *RARE, long if chance.random() < 0.1 else " \n"])
    return line.encode()


def _record(i: int, chance: random.Random, others: float, delimiter: str) -> bytes:
    fields = [str(i), _text(chance), chance.choice("ab")]
    if chance.random() < others:
        bad = (b"only one field", delimiter.join("abcd").encode(), delimiter.join("1\xffb").encode("latin-1"))
        long = delimiter.join(["1", f'"{_long(chance)}"', "b"]).encode()
        return chance.choice([*bad, *bad, b"\n", b"\r\n", long if chance.random() < 0.1 else b""])
    if chance.random() < 0.2:
        fields[1] = chance.choice([delimiter, "\r\n", 'a "word" in\nquotes', '"']) + fields[1]
    quoted = [f'"{field.replace(chr(34), 2 * chr(34))}"' for field in fields]
    is_plain = [not set(field) & {delimiter, '"', "\n", "\r"} and chance.random() < 0.5 for field in fields]
    return delimiter.join(fields[k] if is_plain[k] else quoted[k] for k in range(3)).encode()


def _line(i: int, chance: random.Random, others: float) -> bytes:
    text = _text(chance).replace("\n", "").encode()
    if chance.random() < others:
        other = _long(chance).encode() if chance.random() < 0.03 else b"\xff"
        return chance.choice([b"", b" \t", b"a\r", b'"', other, other, other])
    return text


_Draw = Callable[[int, random.Random, float], bytes]
_FORMATS: dict[str, tuple[_Draw, bytes, bytes]] = {
    "jsonl": (_json_line, b"", b'{"text": "the end", "label": "b"}'),
    "csv": (partial(_record, delimiter=","), b"id,text,label\n", b'1,"the end",b'),
    "tsv": (partial(_record, delimiter="\t"), b"id\ttext\tlabel\r\n", b'1\t"the end"\tb'),
    "txt": (_line, b"", b"the end"),
}
"""For each format: the function that draws a record, the first line, and a last record without its end."""


def told(items: list[Chunk | Skipped | RangeEnd]) -> list[object]:
    """Return all that the items of a range say: its rows, texts, quarantine, and end."""
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


def parts_of(plan: Plan) -> Iterator[Range]:
    """Yield the ranges of a file. Each one's start is known once the range before it has been read."""
    start = None
    for range_ in plan.ranges:
        numbered = Range(range_.number, range_.files, range_.first, None, range_.part_number, range_.parts, start)
        yield numbered
        *_, end = read_range(numbered, plan.selection, 5000, lambda _: False)
        assert isinstance(end, RangeEnd)
        row = (start.row if start else 0) + sum(rows or 0 for _, rows in end.files)
        start = None if end.after is None else Start(row, end.after)
