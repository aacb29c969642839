"""Tokens of encoders compared with those of `tokenizers`."""

from __future__ import annotations

import json
import unicodedata
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import pytest
from conftest import examples
from encoders import needs_minilm, saved, tokenizer
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from broadsheet.pipeline.model import encoder_file
from broadsheet.pipeline.model.encoder import Encoder
from broadsheet.pipeline.model.wordpiece import Rules, WordPiece

if TYPE_CHECKING:
    from tokenizers import Tokenizer


PARTS = [
    "the", "Straße", "ﬁ", "İ", "Σ", "Å", "e\u0301\u0327", "a\u0328\u0301", "\u302e\u302f", "한국어", "漢字",
    "豈", "ひらがな",
    "עברית", "العربية", "हिन्दी", "ไทย", "𝔘𝔫𝔦", "😀", "👩🏽‍💻", "🥰", "\u200d", "\ufeff", "\u0000", "\u0085",
    "\u3000", "\xad", "\t",
    "\r\n", "...", "don't", "$5", f" {'x' * 100} ", f" {'x' * 101} ", "[SEP]", "[MASK]", "[unused5]", "[", "##ing",
    "\U000e0041", "\ud7ff",
    "\u0898\u07fd", "\u302e\U0001d165", "\u302e\U0001d15f\u302e", "\u302f\u0898\0\u07fd", "ᬀ᭄", "≠", "½",
]  # fmt: skip
TEXTS = st.lists(st.sampled_from(PARTS) | st.text(max_size=12) | st.just(" "), max_size=12).map("".join)
POINTS = [chr(c) for c in range(0x110000) if not 0xD800 <= c < 0xE000]


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> tuple[Encoder, Tokenizer]:
    """An encoder with entries for the first 12,288 code points as normalised, and for marks, which MiniLM does not
    know.
    """
    folder = saved(tmp_path_factory.mktemp("encoder"), vocab_size=60_000, hidden_size=8, num_attention_heads=1)
    about = json.loads((folder / "tokenizer.json").read_text())
    library = tokenizer(folder)
    known = POINTS[:0x3000] + [c for c in POINTS[0x3000:] if unicodedata.combining(c)]
    more = {*"".join(map(library.normalizer.normalize_str, known))} - {*" "}
    vocabulary = about["model"]["vocab"]
    for entry in sorted({f"##{c}" for c in more} | more):
        vocabulary.setdefault(entry, len(vocabulary))
    (folder / "tokenizer.json").write_text(json.dumps(about))
    return encoder_file.read(folder, "it").encoder, tokenizer(folder)


def tokens(encoder: Encoder, texts: list[str], most: int) -> tuple[list[list[int]], list[bool]]:
    data = [text.encode() for text in texts]
    places = np.cumsum([0, *map(len, data)])
    ids, ends, is_cut = encoder.tokens.of_texts(np.frombuffer(b"".join(data), np.uint8), places, most)
    return [ids[a:b].tolist() for a, b in pairwise(ends)], is_cut.tolist()


BRIEF = st.text("ab", min_size=1, max_size=5)


@settings(max_examples=examples(300))
@example(entries={"abab", "##b", "a"}, words=["abab", "ababb", "ab", "ba"])  # the longest entry is a whole word
@example(entries={"a", "##babab"}, words=["ababab", "ababa"])  # the longest entry continues a word
@given(entries=st.sets(BRIEF | BRIEF.map("##{}".format), max_size=12), words=st.lists(BRIEF, max_size=6))
def test_words_are_cut_as_the_library_cuts_them(entries: set[str], words: list[str]) -> None:
    """The vocabulary may be any. The words are as long as its longest entry, or shorter."""
    tokenizers = pytest.importorskip("tokenizers")
    vocabulary = ["?", "<", ">", *sorted(entries)]  # shorter than the longest entry
    model = tokenizers.models.WordPiece({word: i for i, word in enumerate(vocabulary)}, unk_token="?")
    ours = WordPiece.of(Rules(1, 2, 0, "##", 100, {}, ""), vocabulary, {})
    data = " ".join(words).encode()
    found = ours.of_texts(np.frombuffer(data, np.uint8), np.array([0, len(data)]), 1000).ids.tolist()
    assert found == [1, *(token.id for word in words for token in model.tokenize(word)), 2]


@needs_minilm
@settings(max_examples=examples(300), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(texts=st.lists(TEXTS, min_size=1, max_size=8), most=st.integers(3, 40))
def test_tokens_are_those_of_the_library(encoder: tuple[Encoder, Tokenizer], texts: list[str], most: int) -> None:
    ours, library = encoder
    library.no_truncation()
    whole = [one.ids for one in library.encode_batch(texts)]
    library.enable_truncation(most)
    expected = [one.ids for one in library.encode_batch(texts)]
    assert tokens(ours, texts, most) == (expected, [len(one) > most for one in whole])


@pytest.mark.slow
@needs_minilm
def test_each_code_point_becomes_what_the_library_makes_of_it(encoder: tuple[Encoder, Tokenizer]) -> None:
    ours, library = encoder
    library.no_truncation()
    texts = ["a" + " a".join(POINTS[i : i + 100]) for i in range(0, len(POINTS), 100)]
    assert tokens(ours, texts, 1 << 20)[0] == [one.ids for one in library.encode_batch(texts)]
