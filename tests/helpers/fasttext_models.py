"""Models of fastText with random weights, and texts that are hard to read: for tests of every backend."""

from __future__ import annotations

import struct
from itertools import pairwise
from pathlib import Path

import numpy as np

from broadsheet.pipeline.model.charcnn import Model
from broadsheet.pipeline.model.fasttext import ALPHABET, FastText, Settings
from broadsheet.pipeline.model.layers import BIAS, WHOLE

LOSSES = ("softmax", "one-vs-all", "negative sampling", "hierarchical softmax")

PIECES = [
    *(
        b" ",
        b"\n",
        b"\t",
        b"\v",
        b"\f",
        b"\r",
        b"\0",
        b"</s>",
        b" </s> ",
        b"__label__en",
        b" __label__x ",
        b"__label__",
    ),
    *(
        b"a",
        b"the ",
        b"hello ",
        b"world ",
        b"News",
        b".",
        b"<",
        b">",
        b"1999",
        b"-",
        b"</s",
        b"/s>",
        b" </S> ",
        b"abc ",
    ),
    *(
        text.encode()
        for text in ("é", "日本", "語", "😀", "👩‍👩‍👧", "мир ", "العربية ", "हिन्दी", "ไทย", "한국어 ", "ẞ", "\u2028")
    ),
    *(b"\x80", b"\xbf\xbf", b"\xff", b"\xc3", b"\xe2\x82", b"\xf0\x9f", b"\xed\xa0\x80", b"\xc2\xa0", b"\xef\xbb\xbf"),
]


def hostile(seed: int, count: int, longest: int = 1000) -> list[bytes]:
    """Return texts in any script, empty texts, invalid UTF-8, labels, and tokens about as long as a warp is wide."""
    rng = np.random.default_rng(seed)
    found = [b"", b" ", b"\n", b"a", b"\x80", b"\xff", "é".encode(), b"</s>", b"</s> x", b"x </s>", b"__label__en"]
    for _ in range(count // 3):
        found.append(b"".join(PIECES[i] for i in rng.integers(0, len(PIECES), rng.integers(0, 60))))
        found.append(rng.integers(0, 256, rng.integers(0, 200), np.uint8).tobytes())
        words = rng.integers(97, 103, (rng.integers(0, 90), 4)).astype(np.uint8)
        found.append(b" ".join(word[: 1 + word[0] % 4].tobytes() for word in words))
    for n in (31, 32, 33, 63, 64, 65, longest):
        found += [
            b"x" * n,
            b" " * n,
            b"\x80" * n,
            "日".encode() * n,
            b"a " * n,
            b"a " * n + b"</s> b c",
            b"__label__q " * n,
        ]
    return found


def branch(
    columns: int, words: int, characters: tuple[int, int], buckets: int, *, pruned: bool = False, has_end: bool = True,
    loss: str = "softmax", classes: int = 3, folded: bool = True, seed: int = 0,
) -> FastText:  # fmt: skip
    """Return a model with random rows.

    columns: the width of the rows. A folded table has as many columns as the model has outputs.
    """
    rng = np.random.default_rng(seed)
    tokens = [
        b"the",
        b"hello",
        b"world",
        b"News",
        b"a",
        "日本".encode(),
        b"1999",
        b"\xff",
        b"x" * 31,
        "日".encode() * 33,
    ]
    tokens += [bytes(rng.integers(97, 103, rng.integers(1, 4)).astype(np.uint8)) for _ in range(60)]
    labels = [b"__label__en", b"abc", *(b"__label__%d" % i for i in range(classes - 2))]
    tokens = [token for token in dict.fromkeys(tokens) if token not in labels] + ([b"</s>"] if has_end else [])
    index, rows = None, buckets
    if pruned:
        rows = buckets // 3
        index = np.stack([rng.permutation(buckets)[:rows], rng.permutation(rows)], axis=1).astype(np.int32)
    outputs = classes - (loss == "hierarchical softmax")
    if folded:
        columns = outputs
    table = rng.standard_normal((len(tokens) + rows, columns)).astype(np.float32)
    output = None if folded else rng.standard_normal((outputs, columns)).astype(np.float32) / np.float32(columns**0.5)
    text, ends = b"".join(tokens + labels), np.cumsum(list(map(len, tokens + labels))).astype(np.int64)
    counts = np.sort(rng.integers(1, 1000, classes))[::-1].astype(np.int64)
    kinds = Settings(words, characters, buckets, loss)  # type: ignore[arg-type]
    return FastText(kinds, table, output, np.frombuffer(text, np.uint8), ends, index, counts)


def model_of(of: FastText, name: str = "fasttext.bin") -> Model:
    classes = tuple(f"class {i}" for i in range(len(of.counts)))
    thresholds = (0.5,) * len(classes) if of.kinds.loss == "one-vs-all" else None
    tensors = {BIAS: np.zeros(len(classes), np.float32)}
    return Model(ALPHABET, classes, WHOLE, tensors, {}, name, "text", ngrams=of, thresholds=thresholds)


def write_file(path: Path, of: FastText, *, one_code: bool = False) -> None:
    """Write a model that is not folded in fastText's own file format.

    one_code: quantise the table to one byte a row.
    """
    rows, columns = of.table.shape
    losses = {"hierarchical softmax": 1, "negative sampling": 2, "softmax": 3, "one-vs-all": 4}
    numbers = (columns, 5, 5, 1, 5, of.kinds.words, losses[of.kinds.loss], 3, of.kinds.buckets, *of.kinds.characters)
    bounds, words = [0, *of.ends.tolist()], of.words.tobytes()
    counts = [*[1] * of.known, *of.counts.tolist()]
    with open(path, "wb") as file:
        file.write(struct.pack("<ii12id", 793712314, 12, *numbers, 100, 1e-4))
        file.write(struct.pack("<3i2q", len(of.ends), of.known, len(of.counts), 1000, -1))
        for number, (first, last) in enumerate(pairwise(bounds)):
            file.write(words[first:last] + b"\0" + struct.pack("<qb", counts[number], number >= of.known))
        file.write(struct.pack("<?", one_code))
        if one_code:
            file.write(struct.pack("<?qqi", False, rows, columns, rows) + bytes(rows))
            file.write(struct.pack("<iiii", columns, 1, columns, columns) + of.table[:256].tobytes())
        else:
            file.write(struct.pack("<qq", rows, columns) + of.table.tobytes())
        file.write(struct.pack("<?qq", False, *of.output.shape) + of.output.tobytes())
