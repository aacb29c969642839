"""Long texts: cut to what the model reads as plain Python cuts them, in chunks sized by what is kept, scored in
windows.
"""

from __future__ import annotations

import csv
import io
import itertools
import json
import random
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest
from conftest import CommandHere, examples, random_model
from distributed import Client
from hypothesis import example, given, settings
from hypothesis import strategies as st
from ngram_models import branch
from reading import found, read_files, read_split

from broadsheet import pipeline
from broadsheet.pipeline import UsageError, classify, label, verify
from broadsheet.pipeline.model.charcnn import Model
from broadsheet.pipeline.model.ngrams import Kinds
from broadsheet.pipeline.source.formats.jsonl import Jsonl
from broadsheet.pipeline.source.formats.records import read_records
from broadsheet.pipeline.source.memory.items import as_items
from broadsheet.pipeline.source.memory.tables import as_tables
from broadsheet.pipeline.source.rows.chunk import Chunk, Selection, concat
from broadsheet.pipeline.source.rows.limits import Limits

READS = 40
TEXT = Selection(reads=READS)

letters = st.text(st.sampled_from('aé中😀\n\t "\\{}[],:/u0\u2028\x7f'), max_size=60)
pieces = st.one_of(st.text(max_size=20), letters, st.sampled_from(["plain words ", "naïve ", "😀", "\\", '"', "中文"]))
texts = st.lists(st.one_of(pieces, st.tuples(pieces, st.integers(1, 300)).map(lambda p: p[0] * p[1])), max_size=6).map(
    "".join
)
escapes = st.sampled_from(
    [
        r"\n",
        r"\b\f\r\t",
        r"\\",
        r"\"",
        r"\/",
        r"\u0041",
        r"\ud83d\ude00",
        r"\ud83d",
        r"\ude00",
        r"\u00zz",
        r"\x",
        "\x01",
        "\\",
        '"',
    ]
)
raw_strings = st.lists(
    st.one_of(escapes, st.sampled_from(["a", "é", "b" * 300, "😀" * 100, r"\n" * 200, r"\ud83d\ude00" * 90])),
    max_size=12,
).map("".join)


def as_python(lines: list[bytes]) -> tuple[list[tuple[str, int]], int]:
    """Return what `json` reads: the beginning and length of each line's text, and how many lines it refuses."""
    found, refused = [], 0
    for line in lines:
        try:
            value = json.loads(line.decode())
            text = value["text"]
            text.encode()
            found.append((text[:READS], len(text)))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            refused += 1
    return found, refused


def read_lines(lines: list[bytes], selection: Selection) -> Chunk:
    form = Jsonl()
    blocks = read_records(io.BytesIO(b"\n".join(lines)), form.split, 0)
    chunks, row = [], 0
    for records in blocks:
        chunks.append(form.parse(records, "f.jsonl", row, selection))
        row += len(records)
    return concat(chunks)


def found_in(chunk: Chunk) -> list[tuple[str, int]]:
    assert chunk.n_chars is not None
    return [(t.decode(), n) for t, n in zip(chunk.text.to_pylist(), chunk.n_chars.tolist(), strict=True)]


@pytest.mark.slow
@settings(deadline=None, max_examples=examples(120))
@given(
    st.lists(texts, min_size=1, max_size=5), st.booleans(), st.sampled_from([(",", ":"), (", ", ": "), (" , ", " : ")])
)
@example(["0" + "\U00010000" * 40], False, (",", ":"))
@example(
    ["0" * k + character * 400 for character in "é€😀" for k in range(READS)], False, (",", ":")
)  # the line is cut at each byte
@example(["x" * 1000 + '"' + "\\" * 7 + "😀"], True, (",", ":"))
def test_texts_in_json_lines_are_cut_as_python_cuts_them(given: list[str], ascii_only: bool, marks) -> None:
    lines = [
        json.dumps({"id": i, "text": text, "more": text[::-1]}, ensure_ascii=ascii_only, separators=marks).encode()
        for i, text in enumerate(given)
    ]
    chunk = read_lines(lines, TEXT)
    assert found_in(chunk) == [(text[:READS], len(text)) for text in given]
    kept = read_lines(lines, Selection(reads=READS, kept_columns=("text", "more")))
    assert kept.rows.column("text").to_pylist() == given
    assert kept.rows.column("more").to_pylist() == [text[::-1] for text in given]
    assert found_in(kept) == found_in(chunk)


@pytest.mark.slow
@settings(deadline=None, max_examples=examples(300))
@given(st.lists(raw_strings, min_size=1, max_size=4), st.sampled_from(range(7)))
@example([r"\ud83d\ude00" * 200], 0)
@example(["b" * 44 + r"\ud83d\ude00" + "b" * 900], 0)
@example(["b" * 45 + r"\n" + "b" * 900], 0)
@example(["b" * 300 + '"', "b" * 300 + '"'], 0)
def test_hostile_strings_are_accepted_and_refused_as_by_json(strings: list[str], shape: int) -> None:
    shapes = (
        '{"text": "%s"}',
        '{"text":"%s", "text": "short"}',
        '{"meta": {"text": "%s"}, "text": "short"}',
        '{"text": "short", "meta": {"text": "%s"}}',
        '{"id": "text", "%s": 1, "text": "short"}',
        '{"text": "a", "te\\u0078t": "%s"}',
        '{"list": [{"text": "%s"}], "a}": "{", "text": "%%s"}',
    )
    lines = [(shapes[shape] % string).replace("%s", string).encode("utf-8") for string in strings]
    lines += [b'{"text": "' + b"good " * 100 + b'"}']
    lines = [line for line in lines if b"\n" not in line]
    chunk = read_lines(lines, TEXT)
    expected, refused = as_python(lines)
    assert found_in(chunk) == expected
    assert len(chunk.quarantine) == refused


def test_a_long_text_that_is_not_utf8_is_set_aside_alone() -> None:
    long = b"x" * 3000
    lines = [b'{"text": "%s"}' % text for text in (long, long + b"\xff", long + b"\xed\xa0\x80", "é".encode() * 2000)]
    chunk = read_lines(lines, TEXT)
    assert found_in(chunk) == [("x" * READS, 3000), ("é" * READS, 2000)]
    assert chunk.quarantine.column("row").to_pylist() == [1, 2]


@pytest.mark.slow
@settings(deadline=None, max_examples=examples(25))
@given(st.lists(st.one_of(texts, st.just(b"x" * 2000 + b"\xff")), min_size=1, max_size=20), st.integers(1, 7))
def test_all_formats_cut_texts_alike(tmp_path_factory: pytest.TempPathFactory, given: list[str | bytes], rows) -> None:
    folder = tmp_path_factory.mktemp("reads")
    raw = [text if isinstance(text, bytes) else text.encode() for text in given]
    good = [text for text in given if isinstance(text, str)]
    array = pa.array(raw, pa.binary()).view(pa.string())
    table = pa.table({"text": array, "id": range(len(raw))})
    pq.write_table(table, folder / "a.parquet", row_group_size=7)
    pq.write_table(table, folder / "b.parquet", use_dictionary=False)
    with pa.ipc.new_file(folder / "c.arrow", table.schema) as writer:
        writer.write_table(table, max_chunksize=5)
    (folder / "d.jsonl").write_bytes(b"\n".join(_json_line(text) for text in raw))
    out = io.StringIO(newline="")
    csv.writer(out, quoting=csv.QUOTE_ALL).writerows([["text"], *([t.decode(errors="surrogateescape")] for t in raw)])
    (folder / "e.csv").write_bytes(out.getvalue().encode(errors="surrogateescape"))
    for path, read in itertools.product(sorted(folder.iterdir()), (read_files, read_split)):
        chunk = concat(read(found([path]), TEXT, rows).chunks)
        assert found_in(chunk) == [(text[:READS], len(text)) for text in good], path.name
        bad = [i for i, text in enumerate(given) if isinstance(text, bytes)]
        assert chunk.quarantine.column("row").to_pylist() == bad, path.name


def _json_line(text: bytes) -> bytes:
    line = json.dumps({"text": text.decode(errors="surrogateescape")}, ensure_ascii=False)
    return line.encode(errors="surrogateescape")


def test_long_rows_make_chunks_of_what_is_kept(tmp_path: Path) -> None:
    """70 MB of lines, of which the model reads 1,014 characters each, are one chunk. Whole texts are several."""
    path = tmp_path / "long.jsonl"
    with open(path, "wb") as file:
        for _ in range(700):
            file.write(b'{"text": "%s"}\n' % (b"word " * 20_000))
    read, whole = (read_files(found([path]), Selection(reads=reads), 131_072).chunks for reads in (1014, 0))
    assert ([len(chunk) for chunk in read], len(whole)) == ([700], 2)


# Chunks of long texts: their size depends on what is kept of the texts, not on what is dropped.


ROWS, HELD_READS, CHUNK_ROWS = 120, 100, 40
LIMITS = Limits(chunk_bytes=30_000, part_bytes=8_000)
"""Forty beginnings of long texts, or four whole ones, are less than `chunk_bytes`."""

TEXTS = [f"{i} é " + "a long text " * 500 for i in range(ROWS)]


def from_file(folder: Path, kind: str, selection: Selection) -> Sequence[Chunk]:
    table = pa.table({"id": range(ROWS), "text": TEXTS})
    path = folder / f"f.{kind}"
    if kind == "parquet":
        pq.write_table(table, path, row_group_size=12)
    elif kind == "arrow":
        pyarrow.feather.write_feather(table, str(path), chunksize=15)
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in table.to_pylist()))
    return read_files(found([path], LIMITS), selection, CHUNK_ROWS).chunks


def from_memory(kind: str, selection: Selection) -> Sequence[Chunk]:
    rows = [{"id": i, "text": text} for i, text in enumerate(TEXTS)]
    source = as_tables(pa.Table.from_pylist(rows)) if kind == "table" else as_items(iter(rows))
    assert source is not None
    return list(source.chunks(source.resolve(selection), CHUNK_ROWS, LIMITS))


@pytest.mark.parametrize("kind", ["parquet", "arrow", "jsonl", "table", "iterator"])
def test_long_texts_make_chunks_by_what_is_kept_of_them(tmp_path: Path, kind: str) -> None:
    def read(selection: Selection) -> Sequence[Chunk]:
        in_file = kind in ("parquet", "arrow", "jsonl")
        return from_file(tmp_path, kind, selection) if in_file else from_memory(kind, selection)

    chunks = read(Selection(("text",), reads=HELD_READS))
    assert [len(chunk) for chunk in chunks[:-1]] == [CHUNK_ROWS] * (len(chunks) - 1)
    whole = concat(chunks)
    assert whole.rows["row"].to_pylist() == [*range(ROWS)]
    assert [text.decode() for text in whole.text.to_pylist()] == [text[:HELD_READS] for text in TEXTS]
    assert whole.n_chars is not None
    assert whole.n_chars.tolist() == [len(text) for text in TEXTS]
    kept = read(
        Selection(("text",), kept_columns=("id",), kept_types=(pa.string(),), reads=HELD_READS)
    )  # the copied column may hold the long texts
    if kind not in ("parquet", "arrow"):  # these formats read only the copied column
        assert max(map(len, kept)) < 10
    assert sum(map(len, kept)) == ROWS


# Long texts in windows: each window is a text of its own, and together they give the text's scores.


LENGTH, MOST, OVERLAP = 123, 4, 40
STEP = LENGTH - OVERLAP
REACH = (MOST - 1) * STEP + LENGTH
SIZES = (0, 1, LENGTH - 1, LENGTH, LENGTH + 1, LENGTH + STEP, LENGTH + STEP + 1, REACH, REACH + 1, 5 * REACH)


@pytest.fixture(scope="module")
def windowed_texts() -> list[str]:
    """Return texts of every size at which something changes, with letters of one to four bytes, known and unknown."""
    rng = random.Random(7)
    plain = "abcdefghij ,.XYZ"
    return ["".join(rng.choices(plain + "éß€漢🙂" * (i % 2), k=size)) for i in range(2) for size in SIZES]


@pytest.fixture(scope="module")
def long_file(windowed_texts: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("long") / "in.jsonl"
    path.write_text("".join(json.dumps({"text": text}, ensure_ascii=False) + "\n" for text in windowed_texts))
    return path


def windows_of(text: str) -> list[str]:
    """Return the windows of a text, as docs/output.md describes them."""
    text = text[:REACH]
    if len(text) <= LENGTH:
        return [text]
    count = 1 + -(-(len(text) - LENGTH) // STEP)
    return [*(text[i * STEP : i * STEP + LENGTH] for i in range(count - 1)), text[-LENGTH:]]


def parts_of(text: str, part: str, size: int) -> list[str]:
    """Return the windows of a text for a named part, as docs/output.md describes them."""
    if len(text) <= size:
        return [text]
    middle = (len(text) - size) // 2
    first, last = text[:size], text[len(text) - size :]
    spread = [first, *([text[middle : middle + size]] if len(text) > 2 * size else []), last]
    return {"first": [first], "last": [last], "first+last": [first, last], "spread": spread}[part]


@pytest.mark.parametrize("score", ["mean", "best", "worst"])
# Each part of a text by its name, and parts shorter than what the model reads.
@pytest.mark.parametrize("windows", ["first", "last", "first+last", "spread", "last:50", "spread:70", "first:20"])
def test_scores_are_those_of_the_parts_that_are_named(
    windowed_texts: list[str], small_model: Model, small_model_file: Path, windows: str, score: str
) -> None:
    part, _, given = windows.partition(":")
    size = int(given or LENGTH)
    lengths = [*range(size - 1, 3 * size + 3, 17), size, 2 * size, 2 * size + 1]
    texts = [*windowed_texts, *(text[:n] for text in windowed_texts[-2:] for n in lengths)]
    with pipeline.load(small_model, device="cpu") as classifier:
        of_windows = [classifier.predict_proba(parts_of(text, part, size)) for text in texts]
    options = {"model": small_model_file, "device": "cpu", "scores": True, "window_score": score, "windows": windows}
    found = classify(texts, **options).to_arrow()
    expected = {
        "mean": lambda scores: scores.astype(np.float64).sum(axis=0) / len(scores),
        "best": lambda scores: scores[np.argmax(scores.max(axis=1))],
        "worst": lambda scores: scores[np.argmin(scores.max(axis=1))],
    }[score]
    every = np.stack([found[f"score_{name}"].to_numpy() for name in small_model.classes], axis=1)
    assert np.array_equal(every, np.array([*map(expected, of_windows)], np.float32))
    assert found["label"].to_pylist() == [small_model.classes[i] for i in every.argmax(axis=1)]
    assert found["n_windows"].to_pylist() == [len(parts_of(text, part, size)) for text in texts]
    assert found["n_chars"].to_pylist() == [len(text) for text in texts]
    most = {"first": 1, "last": 1, "first+last": 2, "spread": 3}[part] * size
    assert found["truncated"].to_pylist() == [len(text) > most for text in texts]
    known = {*small_model.alphabet.symbols, *small_model.alphabet.symbols.upper()}
    looked_at = ["".join(parts_of(text, part, size)) if len(text) > most else text for text in texts]
    assert found["unknown_chars"].to_pylist() == [sum(c not in known for c in text) for text in looked_at]
    alone = [classify([text], **options).to_arrow()["score"].to_pylist()[0] for text in texts[-2:]]
    assert alone == found["score"].to_pylist()[-2:]


def test_the_end_of_a_long_text_is_read_from_every_kind_of_file(
    small_model_file: Path, tmp_path: Path, broadsheet_here: CommandHere
) -> None:
    """Readers cut texts to their beginning, but not if a window reads the end."""
    texts = [f"{'beginning ' * 60}{i} é{'end of it ' * (20 + i)}" for i in range(30)]
    pq.write_table(pa.table({"text": texts}), tmp_path / "in.parquet", row_group_size=7)
    pyarrow.feather.write_feather(pa.table({"text": texts}), str(tmp_path / "in.arrow"), chunksize=5)
    (tmp_path / "in.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    with open(tmp_path / "in.csv", "w", newline="") as file:
        csv.writer(file).writerows([["text"], *([text] for text in texts)])
    ends = classify([text[-LENGTH:] for text in texts], model=small_model_file, device="cpu").to_arrow()
    for path in sorted(tmp_path.iterdir()):
        out = tmp_path / f"out-{path.suffix[1:]}"
        flags = ["--text-column", "text", "--model", small_model_file, "--device", "cpu", "--quiet"]
        code, said = broadsheet_here("classify", path, "-o", out, "--windows", "last", *flags)
        assert code == 0, said
        rows = pq.read_table(out / "parts")
        assert rows["score"].to_pylist() == ends["score"].to_pylist(), path.name
        assert (rows["row"].to_pylist(), rows["n_chars"].to_pylist()) == ([*range(30)], [*map(len, texts)])
        assert rows["truncated"].to_pylist() == [True] * 30
        assert verify(out, input=True).rows_written == 30
    code, said = broadsheet_here("classify", path, "-o", out, "--windows", "last", *flags, "--resume")
    assert code == 0, said
    for value, message in (
        ("0", "it must be a number from 1 on, first, last"),
        ("middle", "it must be a number from 1 on, first, last"),
        ("last:124", "a window is 124: it must be at most the 123 characters"),
    ):
        code, said = broadsheet_here("classify", path, "-o", tmp_path / "no", "--windows", value, *flags)
        assert (code, message in " ".join(said.split())) == (2, True), said
    code, said = broadsheet_here("classify", path, "-o", tmp_path / "no", "--windows", "last", "--overlap", 9, *flags)
    assert (code, "--overlap goes with a number of --windows" in said) == (2, True)


@pytest.mark.parametrize("score", ["mean", "best"])
def test_scores_are_those_of_the_windows_together(
    windowed_texts: list[str], long_file: Path, small_model: Model, client: Client, score: str
) -> None:
    with pipeline.load(small_model, device="cpu") as classifier:
        of_windows = [classifier.predict_proba(windows_of(text)) for text in windowed_texts]
    options = {"model": small_model, "client": client, "device": "cpu", "scores": True, "top_k": 2}
    options |= {"windows": MOST, "overlap": OVERLAP, "window_score": score}
    found = classify(long_file, chunk_size=7, **options).to_arrow()
    expected = []
    for scores in of_windows:
        best = scores[np.argmax(scores.max(axis=1))]
        expected.append(best if score == "best" else (scores.astype(np.float64).sum(axis=0) / len(scores)))
    every = np.stack([found[f"score_{name}"].to_numpy() for name in small_model.classes], axis=1)
    assert np.array_equal(every, np.array(expected, np.float32))
    assert found["score"].to_pylist() == every.max(axis=1).tolist()
    assert found["label"].to_pylist() == [small_model.classes[i] for i in every.argmax(axis=1)]
    assert found["n_windows"].to_pylist() == [len(windows_of(text)) for text in windowed_texts]
    assert found["n_chars"].to_pylist() == [len(text) for text in windowed_texts]
    assert found["truncated"].to_pylist() == [len(text) > REACH for text in windowed_texts]
    known = {*small_model.alphabet.symbols, *small_model.alphabet.symbols.upper()}
    assert found["unknown_chars"].to_pylist() == [sum(c not in known for c in text[:REACH]) for text in windowed_texts]
    alone = [classify([text], **options).to_arrow()["score"].to_pylist()[0] for text in windowed_texts[-3:]]
    assert alone == found["score"].to_pylist()[-3:]  # the neighbours of a text do not matter
    plain = classify(long_file, **{**options, "windows": None, "overlap": 0, "window_score": "mean"}).to_arrow()
    short = [len(text) <= LENGTH for text in windowed_texts]
    for column in plain.column_names[2:]:
        assert plain[column].filter(short).equals(found[column].filter(short)), column
    assert "n_windows" not in plain.column_names


def test_a_folder_with_windows_is_checked_and_resumed_with_the_same_ones(
    long_file: Path, small_model_file: Path, client: Client, tmp_path: Path, broadsheet_here: CommandHere
) -> None:
    out = tmp_path / "out"
    flags = ["--windows", MOST, "--overlap", OVERLAP, "--where", "n_windows > 1", "--model", small_model_file]
    code, said = broadsheet_here("classify", long_file, "-o", out, *flags, "--device", "cpu", "--quiet")
    assert code == 0, said
    assert verify(out, input=True).rows_written == 12
    with pytest.raises(UsageError, match="add overlap=40 in place of overlap=41"):
        classify(
            long_file, out, model=small_model_file, client=client, device="cpu", where="n_windows > 1",
            windows=MOST, overlap=OVERLAP + 1, resume=True,
        )  # fmt: skip
    code, said = broadsheet_here("classify", long_file, "-o", tmp_path / "no", "--overlap", 9)
    assert code == 2
    assert "--overlap and --window-score go with --windows" in said
    with pytest.raises(UsageError, match="below the 123 characters"):
        classify(long_file, model=small_model_file, windows=2, overlap=LENGTH)


def test_each_of_several_models_has_its_own_windows(small_model_file: Path, tmp_path: Path) -> None:
    random_model(seed=5, length=200).save(tmp_path / "longer.safetensors")
    frame = pa.table({"text": ["x" * 200, "y" * 124]})
    both = [small_model_file, tmp_path / "longer.safetensors"]
    found = label(frame, model=both, windows=9, device="cpu")
    assert found["small_n_windows"].to_pylist() == [2, 2]
    assert found["longer_n_windows"].to_pylist() == [1, 1]


def test_a_model_without_a_network_says_what_its_ngrams_read(
    small_model: Model, broadsheet_here: CommandHere, tmp_path: Path
) -> None:
    """The n-grams read on after the network's frame, and know every character."""
    bias = {"fc3.bias": np.zeros(len(small_model.classes), np.float32)}
    alone = replace(small_model, tensors=bias, ngrams=branch(Kinds(2, (3, 5), 300)), name="alone")
    both = replace(small_model, ngrams=alone.ngrams, name="both")
    texts = ["x" * 200, "ж" * 300, "ж" * 301, "ж" * 901]
    for model, unknown in ((alone, [0] * 4), (both, [0, LENGTH, LENGTH, LENGTH])):
        for given_texts in (texts, pa.table({"text": texts})):
            found = classify(given_texts, model=model, device="cpu").to_arrow()
            assert found["truncated"].to_pylist() == [False, False, True, True]
            assert found["unknown_chars"].to_pylist() == unknown
        warned = [line for line in pipeline.dry_run(texts, model=model, device="cpu").warnings if "longer" in line]
        assert warned == ["50% of the texts are longer than the 300 characters that the model reads"]
    in_windows = classify(texts, model=alone, device="cpu", windows=2).to_arrow()
    assert in_windows["n_windows"].to_pylist() == [1, 1, 2, 2]
    assert in_windows["truncated"].to_pylist() == [False, False, False, True]
    assert not any(in_windows["unknown_chars"].to_pylist())
    report = classify(texts, tmp_path / "out", model=alone, device="cpu")
    assert not report.tally.doubtful
    assert "outside the alphabet" not in str(report)
    alone.save(tmp_path / "alone.safetensors")
    facts = json.loads(broadsheet_here("inspect", tmp_path / "alone.safetensors", "--json")[1])
    assert [facts[name] for name in ("reads", "length", "frame", "alphabet")] == [300, None, None, None]
    shown = broadsheet_here("inspect", tmp_path / "alone.safetensors")[1]
    assert "in the first 300 characters" in shown
    assert not re.search(r"^ *(alphabet|length) ", shown, re.MULTILINE)
