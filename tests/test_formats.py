"""A format is one file: this one registers a format of its own and labels with it."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import pipeline
from pipeline.model.charcnn import Model
from pipeline.source.formats import register, unregister
from pipeline.source.formats.record_format import RecordFormat
from pipeline.source.records import Split

TEXTS = [f"article {i}\nin {i % 3} paragraphs" for i in range(100)]


class Fortune(RecordFormat):
    """Articles of any number of lines, each ended by a line with a percent sign, as the program fortune has them."""

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


@pytest.fixture(autouse=True)
def fortune() -> Iterator[None]:
    register(Fortune())
    yield
    unregister(Fortune())


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


def test_a_suffix_belongs_to_one_format() -> None:
    class Other(Fortune):
        name = "other"
        suffixes = (".csv",)

    with pytest.raises(ValueError, match="belongs to csv"):
        register(Other())
