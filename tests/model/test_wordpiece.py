"""Tokens of encoders against those of `tokenizers`."""

from __future__ import annotations

from functools import cache
from itertools import pairwise

import numpy as np
from conftest import examples
from encoders import minilm, needs_minilm, tokenizer
from hypothesis import given, settings
from hypothesis import strategies as st

from broadsheet.pipeline.model import encoder_file
from broadsheet.pipeline.model.encoder import Encoder

pytestmark = needs_minilm

PARTS = [
    "the", "Straße", "ﬁ", "İ", "Σ", "Å", "e\u0301\u0327", "a\u0328\u0301", "\u302e\u302f", "한국어", "漢字",
    "豈", "ひらがな",
    "עברית", "العربية", "हिन्दी", "ไทย", "𝔘𝔫𝔦", "😀", "👩🏽‍💻", "🥰", "\u200d", "\ufeff", "\u0000", "\u0085",
    "\u3000", "\xad", "\t",
    "\r\n", "...", "don't", "$5", "x" * 100, "x" * 101, "[SEP]", "[MASK]", "[unused5]", "[", "##ing",
    "\U000e0041", "\ud7ff",
    "\u07fd\u0898", "ᬀ᭄", "≠", "½",
]  # fmt: skip
TEXTS = st.lists(st.sampled_from(PARTS) | st.text(max_size=12) | st.just(" "), max_size=12).map("".join)


@cache
def encoder() -> Encoder:
    return encoder_file.read(minilm(), "minilm").encoder


@settings(max_examples=examples(300))
@given(texts=st.lists(TEXTS, min_size=1, max_size=8), most=st.integers(3, 40))
def test_tokens_are_those_of_the_library(texts: list[str], most: int) -> None:
    data = [text.encode() for text in texts]
    ids, ends, is_cut = encoder().tokens.of_texts(
        np.frombuffer(b"".join(data), np.uint8), np.cumsum([0, *map(len, data)]), most
    )
    library = tokenizer()
    whole = [one.ids for one in library.encode_batch(texts)]
    library.enable_truncation(most)
    expected = [one.ids for one in library.encode_batch(texts)]
    assert [ids[a:b].tolist() for a, b in pairwise(ends)] == expected
    assert is_cut.tolist() == [len(one) > most for one in whole]


def test_each_code_point_becomes_what_the_library_makes_of_it() -> None:
    library = tokenizer()
    points = [chr(c) for c in range(0x110000) if not 0xD800 <= c < 0xE000]
    texts = ["a " + "a ".join(points[i : i + 100]) for i in range(0, len(points), 100)]
    data = [text.encode() for text in texts]
    ids, ends, _ = encoder().tokens.of_texts(
        np.frombuffer(b"".join(data), np.uint8), np.cumsum([0, *map(len, data)]), 1 << 20
    )
    expected = [one.ids for one in library.encode_batch(texts)]
    assert [ids[a:b].tolist() for a, b in pairwise(ends)] == expected
