"""The token kernel, plain C++ apart from names, compiled for the CPU and compared with its specification."""

from __future__ import annotations

import ctypes
import json
import re
import shutil
import subprocess
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from conftest import examples
from encoders import HOSTILE, drawn
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from broadsheet.pipeline.engine.base import Texts
from broadsheet.pipeline.kernels.compile import FOLDER
from broadsheet.pipeline.kernels.tables import (
    TOKEN_SEGMENT,
    may_split,
    most_tokens,
    parts_record,
    text_parts,
    vocabulary_record,
    vocabulary_tables,
)
from broadsheet.pipeline.model.encoder import Encoder
from broadsheet.pipeline.model.loading import load_model

pytest.importorskip("tokenizers")
COMPILER = shutil.which("c++")
pytestmark = pytest.mark.skipif(COMPILER is None, reason="no C++ compiler is here")

BEFORE = """
#include <algorithm>
#include <cstddef>
using std::min;
#define __device__
#define __global__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __align__(bytes) alignas(bytes)
struct int4 { int x, y, z, w; };
template <class T> T __ldg(const T* at) { return *at; }
static struct { int x; } blockIdx, threadIdx;
constexpr int SHARED_LIMIT = 1 << 20;
using uint8 = unsigned char; using uint16 = unsigned short; using int32 = int; using uint32 = unsigned int;
using int64 = long long; using uint64 = unsigned long long;
extern uint32 words[];
"""
AFTER = """
uint32 words[64 * LONGEST];
using OfLaunch = Launch<64, 64 * LONGEST * 4>;
extern "C" void count(const uint8* data, const int64* offsets, const Parts* parts, const Vocabulary* vocabulary,
                      int most, int* counts) {
    for (int i = 0; i < parts->count; i++) {
        blockIdx.x = i / 64, threadIdx.x = i % 64;
        count_tokens<LONGEST, OfLaunch>(data, offsets, *parts, *vocabulary, most, counts);
    }
}
extern "C" void run(const uint8* data, const int64* offsets, const Parts* parts, const int64* before,
                    const Vocabulary* vocabulary, int most, int of_a_byte, const int64* rooms, int* ids, int* counts,
                    uint8* is_cut) {
    for (int i = parts->count; i-- > 0;) {  // backwards: no part may rely on those before it
        blockIdx.x = i / 64, threadIdx.x = i % 64;
        wordpiece<LONGEST, OfLaunch>(data, offsets, *parts, before, *vocabulary, most, of_a_byte, rooms, ids, counts,
                                     is_cut);
    }
}
"""


def with_case(folder: Path) -> None:
    """Make the tokenizer keep case, accents and marks."""
    (folder / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": False}))


def with_rules_of_its_own(folder: Path) -> None:
    """Make the tokenizer keep control characters, cut words of up to four characters, and use other special tokens and
    pieces.
    """
    tokenizers = pytest.importorskip("tokenizers")
    words = [word.replace("##", "@@") for word in (folder / "vocab.txt").read_text().split("\n")]
    rules = {"continuing_subword_prefix": "@@", "max_input_chars_per_word": 4}
    vocabulary = {word: i for i, word in enumerate(dict.fromkeys(words))}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordPiece(vocabulary, unk_token="[UNK]", **rules))
    tokenizer.normalizer = tokenizers.normalizers.BertNormalizer(False, False, None, False)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    tokenizer.add_tokens([tokenizers.AddedToken(one, normalized=False) for one in ("[SEP]", "ing", "the")])
    frame = [(one, vocabulary[one]) for one in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = tokenizers.processors.BertProcessing(frame[1], frame[0])
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}))


@pytest.fixture(scope="module", params=[None, with_case, with_rules_of_its_own])
def encoder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Encoder:
    folder = drawn(tmp_path_factory.mktemp("drawn") / "it", 64, 2, 128)
    if request.param is not None:
        request.param(folder)
    found = load_model(folder).encoder
    assert found is not None
    return found


@pytest.fixture(scope="module")
def kernel(encoder: Encoder, tmp_path_factory: pytest.TempPathFactory) -> Callable[[Texts, int], list[list[int]]]:
    """A function that returns the kernel's tokens for texts, up to a number of tokens, and which texts have more."""
    folder, longest = tmp_path_factory.mktemp("kernel"), encoder.settings.rules.longest
    lines = BEFORE + (FOLDER / "common/wordpiece.cu").read_text() + AFTER.replace("LONGEST", str(longest))
    lines = re.sub(r'extern __shared__ uint32 words.*|#include "common/types.cuh"', "", lines)
    (folder / "it.cpp").write_text(lines)
    command = [str(COMPILER), "-std=c++17", "-O1", "-shared", "-fPIC", "-I", str(FOLDER), "-o"]
    subprocess.run([*command, str(folder / "it.so"), str(folder / "it.cpp")], check=True)
    library = ctypes.CDLL(str(folder / "it.so"))
    made = vocabulary_tables(encoder.tokens)
    tables, of_a_byte = [np.ascontiguousarray(table) for table in made], most_tokens(made)
    record = vocabulary_record(encoder.tokens, made, [one.ctypes.data for one in tables])
    assert may_split(encoder.tokens)

    def address(array: np.ndarray) -> ctypes.c_void_p:
        return ctypes.c_void_p(array.ctypes.data)

    def tokens(texts: Texts, most: int) -> list[list[int]]:
        parts = text_parts(np.diff(texts.offsets), most, True)
        of_parts = parts_record([array.ctypes.data for array in parts], len(parts.texts))
        data = np.append(texts.data, np.uint8(0))
        given = address(data), address(texts.offsets), address(of_parts)
        of_part = np.full(len(parts.texts), -1, np.int32)
        library.count(*given, address(record), most, address(of_part))
        before = np.concatenate([[0], np.cumsum(of_part[:-1], dtype=np.int64)])

        rooms = np.cumsum([0, *np.minimum(most, 2 + of_a_byte * np.diff(texts.offsets))]).astype(np.int64)
        ids = np.full(rooms[-1], -1, np.int32)
        counts, is_cut = np.empty(len(texts), np.int32), np.zeros(len(texts), np.uint8)
        out = [address(array) for array in (rooms, ids, counts, is_cut)]
        assert tables  # keeps the tables alive as long as this function
        library.run(*given, address(before), address(record), most, of_a_byte, *out)
        own = [ids[at : at + count].tolist() for at, count in zip(rooms.tolist(), counts.tolist(), strict=False)]
        return [*own, is_cut.astype(bool).tolist()]

    return tokens


@settings(max_examples=examples(300), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(drawn_texts=st.lists(HOSTILE, min_size=1, max_size=8), most=st.integers(3, 40))
def test_tokens_are_those_of_numpy(
    encoder: Encoder, kernel: Callable[[Texts, int], list[list[int]]], drawn_texts: list[str], most: int
) -> None:
    texts = Texts.of([text.encode() for text in (*drawn_texts, "".join(drawn_texts), "")])
    want = encoder.tokens.of_texts(texts.data, texts.offsets, most)
    expected = [want.ids[a:b].tolist() for a, b in pairwise(want.ends.tolist())]
    assert kernel(texts, most) == [*expected, want.is_cut.tolist()]


@settings(max_examples=examples(200), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    words=st.lists(HOSTILE, min_size=1, max_size=6),
    separator=st.sampled_from([" ", "", "\n", "\N{CJK UNIFIED IDEOGRAPH-4E00}", "[SEP]", "\u3002", "\u0e01" * 70]),
    size=st.integers(4 * TOKEN_SEGMENT, 16 * TOKEN_SEGMENT),
    most=st.integers(3, 600),
)
def test_the_parts_of_a_long_text_have_the_tokens_of_the_whole(
    encoder: Encoder,
    kernel: Callable[[Texts, int], list[list[int]]],
    words: list[str],
    separator: str,
    size: int,
    most: int,
) -> None:
    """Separators: where a part may begin, where it may not, and letters that fill a segment without such a position."""
    period = separator.join(words) + separator + "a"
    long = period * (1 + size // len(period.encode()))
    texts = Texts.of([text.encode() for text in (long, "the", long + " the", long[: len(long) // 2])])
    assert len(text_parts(np.diff(texts.offsets), most, True).texts) > 4 or most <= TOKEN_SEGMENT // 8
    want = encoder.tokens.of_texts(texts.data, texts.offsets, most)
    expected = [want.ids[a:b].tolist() for a, b in pairwise(want.ends.tolist())]
    assert kernel(texts, most) == [*expected, want.is_cut.tolist()]


def test_bytes_that_are_no_utf_8_are_the_last_code_point(
    encoder: Encoder, kernel: Callable[[Texts, int], list[list[int]]]
) -> None:
    """A job quarantines such bytes, but text that is already on a GPU is read as it is."""
    given = [b"the" + b"\xff" * 8 + b"the", b"the", b"the\xf4\x90\x80\x80the"]
    last = "\U0010ffff"
    read = Texts.of([text.encode() for text in (f"the{last * 2}the", "the", f"the{last}the")])
    want = encoder.tokens.of_texts(read.data, read.offsets, 9)
    expected = [want.ids[a:b].tolist() for a, b in pairwise(want.ends.tolist())]
    assert kernel(Texts.of(given), 9)[:3] == expected
