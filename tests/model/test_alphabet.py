"""Encoding against a character-by-character decoder, on text and on hostile bytes."""

from __future__ import annotations

import numpy as np
import pytest
from conftest import examples
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pipeline.model.alphabet import PUBLISHED, Alphabet, encode

ALPHABETS = [Alphabet(PUBLISHED), Alphabet("aé€😀-a"), Alphabet("".join(map(chr, range(0x4E00, 0x4E00 + 254))))]


def characters_of(article: bytes) -> list[str | None]:
    """The characters of an article, None for a byte that is part of none: Python's decoder, one character a call."""
    found: list[str | None] = []
    at = 0
    while at < len(article):
        for size in (1, 2, 3, 4):
            try:
                found.append(article[at : at + size].decode("utf-8"))
            except UnicodeDecodeError:
                continue
            at += size
            break
        else:
            found.append(None)
            at += 1
    return found


def expected(article: bytes, alphabet: Alphabet, length: int) -> tuple[list[int], int, bool, int]:
    characters = characters_of(article)
    lowered = [c.lower() if c is not None and "A" <= c <= "Z" else c for c in characters]
    ids = [alphabet.unknown if c is None or c not in alphabet.symbols else alphabet.symbols.index(c) for c in lowered]
    read = ids[:length]
    return (
        read + [alphabet.padding] * (length - len(read)),
        len(characters),
        len(characters) > length,
        read.count(alphabet.unknown),
    )


def check(articles: list[bytes], alphabet: Alphabet, length: int) -> None:
    data = np.frombuffer(b"".join(articles), np.uint8)
    offsets = np.concatenate([[0], np.cumsum([len(a) for a in articles])]).astype(np.int64)
    found = encode(data, offsets, alphabet, length)
    assert found.ids.dtype == np.uint8
    for i, article in enumerate(articles):
        ids, n_chars, truncated, unknown = expected(article, alphabet, length)
        assert found.ids[i].tolist() == ids
        assert (found.n_chars[i], found.truncated[i], found.unknown_chars[i]) == (n_chars, truncated, unknown)


pieces = st.one_of(
    st.text(max_size=20).map(lambda s: s.encode("utf-8")),
    st.text(alphabet="aZé€😀一- \n", max_size=20).map(lambda s: s.encode("utf-8")),
    st.binary(max_size=8),
    st.sampled_from(
        [b"\xed\xa0\x80", b"\xc0\xaf", b"\xf4\x90\x80\x80", b"\xf0\x80\x80\x80", b"\xe2\x82", b"\xf0\x9f\x98"]
    ),
)
hostile = st.lists(pieces, max_size=6).map(b"".join)


@settings(max_examples=examples(300), deadline=None)
@given(st.lists(hostile, max_size=6), st.sampled_from(ALPHABETS), st.integers(1, 40))
@example([b"\xe2\x82", b"\xac"], ALPHABETS[1], 5)  # a sequence must not run over into the next article
def test_encode_agrees_with_a_plain_decoder(articles: list[bytes], alphabet: Alphabet, length: int) -> None:
    check(articles, alphabet, length)


@pytest.mark.parametrize("filler", ["a", "é", "€", "😀", "一"])
@pytest.mark.parametrize("count", [0, 1, 1013, 1014, 1015, 70_000])
def test_the_cut_falls_inside_and_beside_multi_byte_characters(filler: str, count: int) -> None:
    article = (filler * count).encode()
    shifted = ("b" + filler * count + "b").encode()
    check([article, b"", shifted, article[:-1]], ALPHABETS[1], 1014)


@pytest.mark.parametrize("end", [b"x", b"\xff", b"\xe4"])
def test_a_very_long_article_is_counted_whole_in_bounded_memory(end: bytes) -> None:
    article = "é😀".encode() * (3 << 19) + end
    data = np.frombuffer(article, np.uint8)
    found = encode(data, np.array([0, len(article)]), ALPHABETS[0], 1014)
    assert found.n_chars[0] == (3 << 20) + 1
    assert found.unknown_chars[0] == 1014


@pytest.mark.parametrize("symbols", ["", "aB", "a\ud800", "x" * 255])
def test_an_impossible_alphabet_is_refused(symbols: str) -> None:
    with pytest.raises(ValueError, match=r"symbols|lower-cased|surrogates"):
        Alphabet(symbols)
