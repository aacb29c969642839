"""JSON lines that Arrow refuses, scattered in a block: the other lines are still parsed at once, with the
same result.
"""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from reading import block_of, same

from broadsheet.pipeline.source.formats.jsonl import Jsonl, parse_one_by_one
from broadsheet.pipeline.source.formats.records import Records
from broadsheet.pipeline.source.rows.chunk import Selection

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
    "two objects": b'{"id": 1, "text": "one"} {"id": 2, "text": "two"}',
    "good for json only": b'{"id": 1, "x": ' + b"[" * 300 + b"]" * 300 + b', "text": "deep"}',
}


def spoilt(rows: int, words: int, odd: list[bytes]) -> Records:
    lines = [json.dumps({"id": i, "text": f"row {i} é " + "word " * words}).encode() for i in range(rows)]
    for at, line in zip(np.random.default_rng(len(odd)).choice(rows, len(odd), replace=False), odd, strict=True):
        lines[at] = line
    return block_of(lines)


# Texts shorter and longer than the 100 characters that may be read.
@pytest.mark.parametrize("words", [3, 400], ids=["short", "long"])
@pytest.mark.parametrize("reads", [0, 100])
def test_an_odd_line_changes_no_other(words: int, reads: int) -> None:
    selection = Selection(("text",), reads=reads)
    for odd in ([line] for line in ODD.values()):
        block = spoilt(500, words, odd)
        assert same(Jsonl().parse(block, "f", 7, selection), parse_one_by_one(block, "f", 7, selection)), odd
    block = spoilt(500, words, [*ODD.values()] * 3)
    assert same(Jsonl().parse(block, "f", 7, selection), parse_one_by_one(block, "f", 7, selection))


LONG = b"some of the words of a text that is long enough to be taken out of its line before that is parsed, " * 3
FORMS = [
    b'{"id": 1, "text": "%s"}',
    b'{"text": "%s", "id": 20}',
    b'{"id": 305, "text":"%s","source": "a \\"page\\""}',
    b'{"id": 4, "meta": {"text": "another", "n": [1, 2]}, "text": "%s"}',
    b'{"id": 5, "title": "[a {b", "text": "%s"}',
    b'{"id": 6, "title": "}", "meta": {"text": "%s"}, "text": "short"}',
    b'{"id": 7, "meta": {"text": "%s"}}',
]
TEXTS = {
    "plain": LONG,
    "accents": "é😀".encode() + LONG,
    "escapes": b'\\"' + LONG + b'\\n\\t\\/ \\\\" ends'.replace(b'\\\\"', b'\\\\\\"'),
    "backslash": LONG + b"\\\\",
    "as a key": b'a \\"text\\": \\"b\\" ' + LONG,
    "as another line": LONG + b'"}\n{"id": 9, "text": "' + LONG,
    "digits": LONG + b"\\u00e9 \\ud83d\\ude00",
    "half of a pair": LONG + b"\\ud83d",
    "no escape": b"\\x" + LONG,
    "a control character": b"a\tb" + LONG,
    "a quote too many": b'a "b ' + LONG,
    "two quotes too many": b'a "b" ' + LONG,
    "an escaped end": LONG + b"\\",
    "a second value": LONG + b'", "text": "b',
    "a key in a string": LONG + b'", "a\\"text": "b',
    "empty": b"",
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kept", [(), ("id",)], ids=["text alone", "with a number"])
def test_a_text_that_is_taken_out_is_what_json_finds(form: bytes, kept: tuple[str, ...]) -> None:
    selection = Selection(("text",), kept_columns=kept, kept_types=(pa.string(),) * len(kept), reads=200)
    for usual in (FORMS[0], form):
        for name, text in TEXTS.items():
            lines = [usual % LONG] * 40 + [form % text] + [usual % TEXTS["escapes"]] * 40
            block = block_of(b"\n".join(lines).split(b"\n"))
            taken, expected = (parse(block, "f", 7, selection) for parse in (Jsonl().parse, parse_one_by_one))
            assert same(taken, expected), (usual, name)


@pytest.mark.parametrize(
    "line",
    [
        b'{"text": "", "text": "%s"}',
        b'{"x": "a"text": "%s"}',
        b'{"a\\"text": "%s"}',
        b'{"x": "\\ud83d", "text": "%s"}',
        b'{"text": "%s", "te\\u0078t": "y"}',
        b'{"x": 01, "text": "%s"}',
        b'{"text": "%s", "x": "y}',
        b'{"text": "%s"]}',
    ],
)
def test_of_what_is_no_such_object_no_text_is_taken(line: bytes) -> None:
    selection = Selection(("text",), reads=200)
    for usual in FORMS[:2]:
        block = block_of([usual % LONG, line % LONG] + [usual % LONG] * 200)
        assert same(Jsonl().parse(block, "f", 0, selection), parse_one_by_one(block, "f", 0, selection))


@pytest.mark.parametrize("name", ["not a number", "infinite"])
def test_numbers_of_other_programs_are_read(name: str) -> None:
    chunk = Jsonl().parse(block_of([b'{"id": 1, "text": "a"}', ODD[name]]), "f", 0, Selection(("text",)))
    assert (len(chunk), len(chunk.quarantine)) == (2, 0)


NUMBERS = st.from_regex(r"-?(0|[1-9][0-9]{0,20})\.[0-9]{1,20}([eE][+-]?[0-9]{1,4})?", fullmatch=True)


@given(st.lists(NUMBERS, min_size=1))
def test_a_kept_number_has_the_digits_with_which_it_is_written(numbers: list[str]) -> None:
    lines = [f'{{"text": "a", "n": {n}, "in": {{"é": [{n}, null, 7]}}}}'.encode() for n in numbers]
    chunk = Jsonl().parse(block_of(lines), "f", 0, Selection(("text",), kept_columns=("n", "in")))
    assert chunk.rows.column("n").to_pylist() == numbers
    assert chunk.rows.column("in").to_pylist() == [f'{{"é": [{number}, null, 7]}}' for number in numbers]
