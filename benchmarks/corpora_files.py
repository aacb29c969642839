"""Typical corpora of any size: short and long texts, in every format and compression."""

from __future__ import annotations

import gzip
import json
import multiprocessing
import shutil
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import BinaryIO, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.json as pa_json
import pyarrow.parquet as pq
from backports import zstd

from benchmarks.articles import ag_news_texts
from broadsheet.pipeline.processes.threads import available_cores

JOINED = 20
"""The number of articles in a long text, which has about 5 KB."""

_VARIED, _REPLACED_WORDS = 200_000, 0.15
"""The number of texts from which all corpora are drawn, and the share of their words that is replaced by other words.

The texts have 50 MB, more than the windows of compressors, which otherwise would find most articles again.
"""

_ROWS_AT_ONCE = {False: 50_000, True: 5_000}
_PARQUET_GROUP = 131_072

_DISTINCT = 16
"""The number of large files that are written. The other files are hard links to them, in turn.

Links make no difference to a job: only the page cache could hold files of this size, and it holds all of them anyway.
"""


@dataclass(frozen=True)
class Corpus:
    """Files of one kind.

    Attributes
    ----------
    name : str
        The name in the results.
    ending : str
        The ending of the files' names, which decides format and compression.
    files : int
        How many files there are.
    rows : int
        How many rows each file has.
    long : bool
        Whether a text consists of 20 articles.
    small : bool
        Whether the files are small.
    one : bool
        Whether the files are joined to one in the end. igzip compresses it, in a twentieth of gzip's time.

    """

    name: str
    ending: str
    files: int
    rows: int
    long: bool = False
    small: bool = False
    one: bool = False

    def scaled(self, by: float) -> Corpus:
        """Return the corpus with a multiple of its rows: with longer files, or with more files if they are small."""
        if self.small:
            return replace(self, files=max(1, int(self.files * by)))
        return replace(self, rows=max(1, int(self.rows * by)))

    @property
    def distinct(self) -> int:
        """How many of the files are written. The others are links to them."""
        return self.files if self.small else min(self.files, _DISTINCT)


def write_corpus(articles_csv: Path, folder: Path, corpus: Corpus) -> Path:
    """Write the files of a corpus, unless its folder has them already. Returns the folder."""
    inputs = folder / corpus.name
    stamp, made = folder / f"{corpus.name}.json", json.dumps(asdict(corpus))
    if inputs.exists() and stamp.exists() and stamp.read_text() == made:
        return inputs
    # Write the files in processes.
    stamp.unlink(missing_ok=True)
    shutil.rmtree(inputs, ignore_errors=True)
    inputs.mkdir(parents=True)
    _varied(articles_csv)  # the processes, which are forked later, share it
    parts = replace(corpus, ending=corpus.ending.removesuffix(".gz")) if corpus.one else corpus
    with ProcessPoolExecutor(available_cores(), multiprocessing.get_context("fork")) as pool:
        for future in [pool.submit(_write_file, articles_csv, inputs, parts, n) for n in range(corpus.distinct)]:
            future.result()
    # Link the others to them, or join all to one.
    for number in range(corpus.distinct, corpus.files):
        (inputs / _name(parts, number)).hardlink_to(inputs / _name(parts, number % corpus.distinct))
    if corpus.one:
        _join(inputs, corpus.ending)
    stamp.write_text(made)
    return inputs


def texts_of(articles_csv: Path, long: bool, count: int, seed: int = 0) -> pa.LargeStringArray:
    """Draw `count` texts of a corpus."""
    varied = _varied(articles_csv)
    joined = JOINED if long else 1
    drawn = varied.take(pa.array(np.random.default_rng([1, seed]).integers(0, len(varied), count * joined)))
    return _joined(drawn, np.arange(0, count * joined + 1, joined)) if long else drawn


def _join(inputs: Path, ending: str) -> None:
    """Join the files of a folder to one, which is compressed."""
    from isal import igzip

    parts = sorted(inputs.iterdir())
    with igzip.open(inputs / f"all{ending}", "wb", compresslevel=2) as stream:
        for part in parts:
            with open(part, "rb") as source:
                shutil.copyfileobj(source, stream, 1 << 22)
            part.unlink()


@cache
def _varied(articles_csv: Path) -> pa.LargeStringArray:
    """Return 200,000 articles in which some words are replaced by words of other articles."""
    rng = np.random.default_rng(0)
    words = pc.split_pattern(pa.array(ag_news_texts(articles_csv), pa.large_string()), " ")
    lists = words.take(pa.array(rng.permutation(np.resize(np.arange(len(words)), _VARIED))))
    flat = lists.flatten()
    places = np.arange(len(flat))
    replaced = rng.random(len(flat)) < _REPLACED_WORDS
    places[replaced] = rng.integers(0, len(flat), int(replaced.sum()))
    return _joined(flat.take(pa.array(places)), np.asarray(lists.offsets))


def _joined(values: pa.LargeStringArray, offsets: np.ndarray) -> pa.LargeStringArray:
    """Join the strings between each two offsets, with spaces."""
    lists = pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), values)
    return pc.binary_join(lists, pa.scalar(" ", pa.large_string()))


def _name(corpus: Corpus, number: int) -> str:
    return f"articles-{number:05d}{corpus.ending}"


def _write_file(articles_csv: Path, inputs: Path, corpus: Corpus, number: int) -> None:
    file = inputs / _name(corpus, number)
    if corpus.ending == ".parquet":
        schema = pa.schema([("id", pa.int64()), ("text", pa.large_string())])
        with pq.ParquetWriter(file, schema, compression="zstd", use_dictionary=False) as writer:
            for table in _tables(articles_csv, corpus, number, _PARQUET_GROUP):
                writer.write_table(table)
        return
    line = _csv_lines if corpus.ending.startswith(".csv") else _json_lines
    with _compressed(file) as stream:
        if corpus.ending.startswith(".csv"):
            stream.write(b"id,text\n")
        for table in _tables(articles_csv, corpus, number, _ROWS_AT_ONCE[corpus.long]):
            stream.write(line(table))


def _tables(articles_csv: Path, corpus: Corpus, number: int, rows: int) -> Iterator[pa.Table]:
    first = number * corpus.rows
    for at in range(0, corpus.rows, rows):
        count = min(rows, corpus.rows - at)
        texts = texts_of(articles_csv, corpus.long, count, seed=first + at)
        yield pa.table({"id": pa.array(np.arange(first + at, first + at + count)), "text": texts})


def _json_lines(table: pa.Table) -> memoryview:
    text = pc.replace_substring(pc.replace_substring(table["text"], "\\", "\\\\"), '"', '\\"')
    return _bytes('{"id": ', table["id"].cast(pa.large_string()), ', "text": "', text, '"}\n')


def _csv_lines(table: pa.Table) -> memoryview:
    return _bytes(table["id"].cast(pa.large_string()), ',"', pc.replace_substring(table["text"], '"', '""'), '"\n')


def _bytes(*pieces: object) -> memoryview:
    """Join strings and columns of strings in each row, and return the bytes of all rows."""
    scalars = [pa.scalar(piece, pa.large_string()) if isinstance(piece, str) else piece for piece in pieces]
    rows = pc.binary_join_element_wise(*scalars, pa.scalar("", pa.large_string())).combine_chunks()
    rows = rows.chunk(0) if isinstance(rows, pa.ChunkedArray) else rows
    return memoryview(rows.buffers()[2])


@contextmanager
def _compressed(file: Path) -> Iterator[BinaryIO]:
    """Open a file for writing, compressed by its ending as `gzip` and `zstd` do at their default levels.

    The data becomes one gzip member or one zstd frame.
    """
    if file.suffix == ".gz":
        with gzip.open(file, "wb", 6) as stream:
            yield cast(BinaryIO, stream)
    elif file.suffix == ".zst":
        with zstd.open(file, "wb", level=3) as stream:
            yield cast(BinaryIO, stream)
    else:
        with open(file, "wb") as stream:
            yield stream


def table_by_pyarrow(file: Path) -> pa.Table:
    """Read the texts of a file with PyArrow."""
    if file.suffix == ".parquet":
        return pq.read_table(file, columns=["text"])
    if file.suffix == ".csv":
        some = pa_csv.ConvertOptions(include_columns=["text"])
        return pa_csv.read_csv(file, parse_options=pa_csv.ParseOptions(newlines_in_values=True), convert_options=some)
    schema = pa.schema([("text", pa.string())])
    only = pa_json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore")
    with pa.input_stream(file, compression="detect") as stream:
        return pa_json.read_json(stream, parse_options=only)
