"""JSON lines that Arrow refuses, here and there in a block: the others are still parsed at once, and to the same."""

from __future__ import annotations

import io
import json

import numpy as np
import pytest

from pipeline.source.chunk import Chunk, Selection
from pipeline.source.formats.jsonl import Jsonl, parse_one_by_one
from pipeline.source.formats.records import Records, read_records

ODD = {
    "null": b'{"id": 1, "text": null}',
    "no text": b'{"id": 1}',
    "half of a pair": b'{"id": 1, "text": "a \\ud83d and more"}',
    "no escape": b'{"id": 1, "text": "a \\x and more"}',
    "not UTF-8": b'{"id": 1, "text": "caf\xe9"}',
    "cut off": b'{"id": 1, "text": "a text that en',
    "a quote too many": b'{"id": 1, "text": "a "quoted" wo"rd"}',
    "two quotes too many": b'{"id": 1, "text": "a "quoted" word"}',
    "a number": b'{"id": 1, "text": 17}',
    "not a number": b'{"id": 1, "x": -NaN, "text": "a"}',
    "infinite": b'{"id": 1, "x": [-Inf, Inf], "text": "\\"Inf: -NaN"}',
    "good for json only": b'{"id": 1, "x": ' + b"[" * 300 + b"]" * 300 + b', "text": "deep"}',
}


def block_of(lines: list[bytes]) -> Records:
    (block,) = read_records(io.BytesIO(b"\n".join([*lines, b""])), Jsonl().split, 0)
    return block


def spoilt(rows: int, words: int, odd: list[bytes]) -> Records:
    lines = [json.dumps({"id": i, "text": f"row {i} é " + "word " * words}).encode() for i in range(rows)]
    for at, line in zip(np.random.default_rng(len(odd)).choice(rows, len(odd), replace=False), odd, strict=True):
        lines[at] = line
    return block_of(lines)


def same(one: Chunk, other: Chunk) -> bool:
    counts = np.array_equal(one.n_chars, other.n_chars) if one.n_chars is not None else other.n_chars is None
    return (
        one.text.equals(other.text)
        and one.rows.equals(other.rows)
        and one.quarantine.equals(other.quarantine)
        and counts
    )


@pytest.mark.parametrize("words", [3, 400], ids=["short", "long"])
@pytest.mark.parametrize("reads", [0, 100])
def test_an_odd_line_changes_no_other(words: int, reads: int) -> None:
    selection = Selection(("text",), reads=reads)
    for odd in ([line] for line in ODD.values()):
        block = spoilt(500, words, odd)
        assert same(Jsonl().parse(block, "f", 7, selection), parse_one_by_one(block, "f", 7, selection)), odd
    block = spoilt(500, words, [*ODD.values()] * 3)
    assert same(Jsonl().parse(block, "f", 7, selection), parse_one_by_one(block, "f", 7, selection))


@pytest.mark.parametrize("name", ["not a number", "infinite"])
def test_numbers_of_other_programs_are_read(name: str) -> None:
    chunk = Jsonl().parse(block_of([b'{"id": 1, "text": "a"}', ODD[name]]), "f", 0, Selection(("text",)))
    assert (len(chunk), len(chunk.quarantine)) == (2, 0)
