"""A format takes one file of code: this module registers a format of its own, and labels with it."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from broadsheet import pipeline
from broadsheet.pipeline.model.charcnn import Model
from broadsheet.pipeline.source.formats.record_format import RecordFormat
from broadsheet.pipeline.source.formats.records import Split
from broadsheet.pipeline.source.formats.tables import table_chunk
from broadsheet.pipeline.source.open.opening import open_at
from broadsheet.pipeline.source.plan.files import register, unregister
from broadsheet.pipeline.source.rows.chunk import Chunk, Selection
from broadsheet.pipeline.source.rows.format import Format, InputFile, Schema, Seek

TEXTS = [f"article {i}\nin {i % 3} paragraphs" for i in range(100)]


class Fortune(RecordFormat):
    """Articles of any number of lines, each ended by a line with a percent sign, as in the files of the program
    fortune.
    """

    name = "fortune"
    suffixes = (".fortune",)

    def split(self, buffer: bytes, final: bool) -> Split:
        starts, ends, at = [], [], 0
        while (end := buffer.find(b"\n%\n", at)) >= 0:
            starts.append(at)
            ends.append(end)
            at = end + len(b"\n%\n")
        if final and at < len(buffer):
            starts.append(at)
            ends.append(len(buffer))
            at = len(buffer)
        return Split(np.array(starts, np.int64), np.array(ends, np.int64), {}, at)


class Letter(Format):
    """A format whose files hold one article each, read front to back: the least that a format has to define."""

    name = "letter"
    suffixes = (".letter",)
    seeks = Seek.NOTHING

    def schema(self, file: InputFile, selection: Selection) -> Schema:
        return Schema(("text",))

    def stream(self, file: InputFile, selection: Selection, chunk_rows: int) -> Iterator[Chunk]:
        with open_at(file) as content:
            yield table_chunk(pa.table({"text": [content.read(1 << 20)]}), file.path, 0, selection)


@pytest.fixture(autouse=True)
def own_formats() -> Iterator[None]:
    for added in (Fortune(), Letter()):
        register(added)
    yield
    for added in (Fortune(), Letter()):
        unregister(added)


@pytest.mark.parametrize("name", ["a.fortune", "a.fortune.gz"])
def test_a_registered_format_is_labelled_as_the_same_texts_in_memory(
    small_model: Model, tmp_path: Path, name: str
) -> None:
    data = "\n%\n".join(TEXTS).encode()
    (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    done = pipeline.classify(tmp_path / name, model=small_model, scores=True, chunk_size=30)
    expected = pipeline.classify(TEXTS, model=small_model, scores=True)
    assert done.rows_read == done.rows_written == len(TEXTS)
    assert done.to_arrow().drop_columns(["file"]).equals(expected.to_arrow().drop_columns(["file"]))


def test_a_format_that_cannot_seek_is_read_by_the_client(small_model: Model, tmp_path: Path) -> None:
    for i in range(3):
        (tmp_path / f"{i}.letter").write_text(TEXTS[i])
    (tmp_path / "3.letter.gz").write_bytes(gzip.compress(TEXTS[3].encode()))
    done = pipeline.classify(tmp_path, model=small_model, scores=True)
    expected = pipeline.classify(TEXTS[:4], model=small_model, scores=True)
    assert [Path(file).name for file in done.to_arrow()["file"].to_pylist()] == [
        "0.letter", "1.letter", "2.letter", "3.letter.gz",
    ]  # fmt: skip
    assert done.to_arrow().drop_columns(["file", "row"]).equals(expected.to_arrow().drop_columns(["file", "row"]))


def test_a_suffix_belongs_to_one_format() -> None:
    class Other(Fortune):
        name = "other"
        suffixes = (".csv",)

    with pytest.raises(ValueError, match="belongs to csv"):
        register(Other())
