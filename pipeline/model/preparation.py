"""The preparation of a text before a model reads it: steps from a closed set, which are part of the model.

Each step takes a column of texts. Steps call PyArrow, or NumPy where PyArrow would be slow; the step `pieces` calls the
`tokenizers` library. Each step gives the same result as Python's function of the same name, because published models
were made with Python's functions. PyArrow lowers "İ" and "Σ" differently, so Python lowers a text that contains one.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Iterable
from functools import cached_property, lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Meta, Struct
from numpy.typing import NDArray

from ..errors import ModelError, UsageError, cause, install
from .model_file import MOST_TOKENIZER_BYTES, read_file

SPACES = "".join(filter(str.isspace, map(chr, range(0x3001))))
"""The characters that `str.strip` strips."""

_LINE_ENDS = b"\n\r\v\f\x1c\x1d\x1e"
_OTHER_LINE_ENDS = ("\r\n", "\x85", "\u2028", "\u2029")
_BY_PYTHON = ("İ", "Σ")
_GONE = np.uint8(0xFF)
"""A mark in place of each byte to remove. It occurs in no text in UTF-8."""

_BLOCK_POINTS = 1 << 12
"""The number of code points in a block that `_Class` looks up at once: those that share a first byte in UTF-8, if they
take three bytes.
"""

_FIRSTS = [*range(0x80), *range(0x80, 0x800, 0x40), 0x800, *range(_BLOCK_POINTS, 1 << 16, _BLOCK_POINTS)]
"""The lowest code point of each first byte, for code points of one, two and three bytes."""

_META = frozenset(r"\.+*?()|[]{}^$")
_MOST_STEPS, _MOST_PATTERN, _MOST_BY = 32, 2000, 64
_AT_ONCE_BYTES = 1 << 18
"""The size in bytes of a batch of texts that goes through all steps before the next one. It stays in a core's cache."""


_Pattern = Annotated[str, Meta(min_length=1, max_length=_MOST_PATTERN)]


class _Step(Struct, frozen=True, tag_field="step", forbid_unknown_fields=True):
    def of(self, texts: pa.LargeStringArray) -> pa.LargeStringArray:
        """Return the texts after this step. texts: [N], without nulls, as is the result."""
        raise NotImplementedError

    def __str__(self) -> str:
        name, *values = msgspec.to_builtins(self).values()
        return " ".join([name, *(value if str(value).isalpha() else ascii(value) for value in values)])


class Unicode(_Step, frozen=True, tag="unicode"):
    """Composes or decomposes characters, as `unicodedata.normalize` does."""

    form: Literal["NFC", "NFD", "NFKC", "NFKD"]

    def of(self, texts: pa.LargeStringArray) -> pa.LargeStringArray:
        return pc.utf8_normalize(texts, self.form)


class Lower(_Step, frozen=True, tag="lower"):
    """Lowers letters, as `str.lower` does."""

    def of(self, texts: pa.LargeStringArray) -> pa.LargeStringArray:
        raw, offsets = _bytes_of(texts)
        if raw.isascii():
            return pc.ascii_lower(texts)
        lowered = pc.utf8_lower(texts)
        places = np.concatenate([_places(letter, raw) for letter in _BY_PYTHON])
        if not len(places):
            return lowered
        rows = np.isin(np.arange(len(texts)), np.searchsorted(offsets, places, side="right") - 1)
        by_python = pa.array([text.as_py().lower() for text in texts.filter(pa.array(rows))], pa.large_string())
        return pc.replace_with_mask(lowered, pa.array(rows), by_python)


class Marks(_Step, frozen=True, tag="marks"):
    """Removes marks that take no space of their own (category Mn).

    A mark that is part of a composed letter is removed only after the step `unicode` with NFD or NFKD.
    """

    def of(self, texts: pa.LargeStringArray) -> pa.LargeStringArray:
        return Remove(r"[\p{Mn}]").of(texts)


class Replace(_Step, frozen=True, tag="replace"):
    """Replaces each match of a regular expression in the syntax of RE2 (https://github.com/google/re2/wiki/Syntax)."""

    pattern: _Pattern
    by: Annotated[str, Meta(max_length=_MOST_BY)]

    def of(self, texts: pa.LargeStringArray) -> pa.LargeStringArray:
        if _META & set(self.pattern):
            return pc.replace_substring_regex(texts, self.pattern, self.by.replace("\\", "\\\\"))
        if self.is_of_bytes:
            raw, offsets = _bytes_of(texts)
            return column_of(raw.replace(self.pattern.encode(), self.by.encode()), offsets)
        return pc.replace_substring(texts, self.pattern, self.by)

    @property
    def is_of_bytes(self) -> bool:
        """Whether the step replaces one ASCII character by another."""
        both = self.pattern + self.by
        return len(self.pattern) == len(self.by) == 1 and both.isascii() and self.pattern not in _META


class Remove(_Step, frozen=True, tag="remove"):
    r"""Removes the characters of a class in the syntax of RE2, such as ``[\pP\pN]``."""

    characters: Annotated[str, Meta(max_length=_MOST_PATTERN, pattern=r"^\[.+\]$")]

    def of(self, texts: pa.LargeStringArray) -> pa.LargeStringArray:
        # NumPy looks the characters up in a table: RE2 takes as long for one match as NumPy for a hundred bytes.
        raw, offsets = _bytes_of(texts)
        gone = _class(self.characters).holds(raw).view(np.uint8)
        return _without_gone(np.frombuffer(raw, np.uint8) | gone * _GONE, offsets)


class Squeeze(_Step, frozen=True, tag="squeeze"):
    """Replaces each run of spaces by one space."""

    def of(self, texts: pa.LargeStringArray) -> pa.LargeStringArray:
        return pc.replace_substring_regex(texts, " {2,}", " ")


class Strip(_Step, frozen=True, tag="strip"):
    """Removes white space at both ends, as `str.strip` does."""

    def of(self, texts: pa.LargeStringArray) -> pa.LargeStringArray:
        return pc.utf8_trim(texts, SPACES)


class Lines(_Step, frozen=True, tag="lines"):
    """Joins lines: replaces each line end that `str.splitlines` knows by a space."""

    def of(self, texts: pa.LargeStringArray) -> pa.LargeStringArray:
        raw, offsets = _bytes_of(texts)
        places = [_places(end, raw) for end in _OTHER_LINE_ENDS]
        # Drop each CR LF that is split between two texts.
        places[0] = places[0][offsets[np.searchsorted(offsets, places[0] + 1)] > places[0] + 1]
        for byte in _LINE_ENDS:
            raw = raw.replace(bytes([byte]), b" ")
        left = np.frombuffer(bytearray(raw), np.uint8)
        for end, some in zip(_OTHER_LINE_ENDS, places, strict=True):
            left[some] = ord(" ")
            for more in range(1, len(end.encode())):
                left[some + more] = _GONE
        return _without_gone(left, offsets)


class Pieces(_Step, frozen=True, tag="pieces"):
    """Splits a text into the pieces of a `tokenizer.json`, decodes each piece by itself, and joins them with spaces."""

    tokenizer: str = "tokenizer.json"


Step = Unicode | Lower | Marks | Replace | Remove | Squeeze | Strip | Lines | Pieces


Steps = Annotated[tuple[Step, ...], Meta(min_length=1, max_length=_MOST_STEPS)]


class ByteSteps(NamedTuple):
    """A preparation that treats each byte by itself, in the form that GPU kernels take.

    Attributes
    ----------
    table : bytes
        [256], the byte that replaces each byte.
    strips : bool
        Whether white space at both ends is then removed.

    """

    table: bytes
    strips: bool


class Preparation(Struct, frozen=True, dict=True):
    """The steps of a model's preparation, and the tokenizer that the step `Pieces` needs.

    Attributes
    ----------
    steps : tuple of Step
        The steps in order.
    tokenizer : bytes
        The content of the tokenizer.json; empty if no step needs it.

    """

    steps: Steps
    tokenizer: bytes = b""

    @cached_property
    def id(self) -> str:
        """The sha256 of the steps and the tokenizer, as hexadecimal text."""
        about = [msgspec.to_builtins(self.steps), hashlib.sha256(self.tokenizer).hexdigest()]
        return hashlib.sha256(msgspec.json.encode(about)).hexdigest()

    @cached_property
    def byte_steps(self) -> ByteSteps | None:
        """The same preparation byte by byte, if its steps only replace single ASCII characters and strip; else None."""
        table, strips = bytearray(range(256)), any(isinstance(step, Strip) for step in self.steps)
        for step in self.steps:
            if isinstance(step, Strip):
                continue
            if not isinstance(step, Replace) or not step.is_of_bytes:
                return None
            if strips and (step.pattern in SPACES) != (step.by in SPACES):
                return None  # the order of the steps decides what is stripped
            table = table.replace(step.pattern.encode(), step.by.encode())
        return ByteSteps(bytes(table), strips)

    def check(self, model: str) -> None:
        """Raise ModelError for an invalid regular expression, or if the step `Pieces` and the tokenizer don't match."""
        for step in self.steps:
            try:
                if not isinstance(step, Pieces):
                    step.of(pa.array([""], pa.large_string()))
            except (pa.ArrowInvalid, UnicodeEncodeError) as error:
                raise ModelError(f"{model}: the step {step} of its preparation: {cause(error)}") from error
        if any(isinstance(step, Pieces) for step in self.steps) != bool(self.tokenizer):
            raise ModelError(f"{model}: pieces of a tokenizer without its file, or the file without the step")

    def of(self, texts: pa.LargeStringArray) -> pa.LargeStringArray:
        """Return the texts as the model reads them, [N]. Raises UsageError if a package is missing."""
        _, offsets = buffers_of(texts)
        cuts = np.unique([0, *np.searchsorted(offsets, np.arange(0, offsets[-1], _AT_ONCE_BYTES)), len(texts)])
        parts = [texts[first:last] for first, last in pairwise(cuts.tolist())]
        for i, part in enumerate(parts):
            for step in self.steps:
                part = _pieces(part, self.tokenizer) if isinstance(step, Pieces) else step.of(part)
            parts[i] = part
        return pa.concat_arrays([texts[:0], *parts])

    def __str__(self) -> str:
        return "; ".join(map(str, self.steps))


def of_file(steps: list[dict[str, Any]], tokenizer: bytes, model: str) -> Preparation:
    """Return the preparation of a model file. Raises ModelError if it is damaged."""
    try:
        made = Preparation(msgspec.convert(steps, Steps), tokenizer)
    except ValueError as error:
        raise ModelError(f"{model}: its preparation is damaged ({error})") from error
    made.check(model)
    return made


def read_steps(path: Path) -> Preparation:
    """Read the preparation in a JSON file, which contains a list of steps.

    Raises UsageError if the file or its tokenizer cannot be read, and ModelError as `Preparation.check` does.
    """
    try:
        steps = msgspec.json.decode(path.read_bytes(), type=Steps)
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} holds no steps of a preparation: {cause(error)}") from error
    return with_tokenizer(steps, path.parent, str(path))


def with_tokenizer(steps: Steps, folder: Path, name: str) -> Preparation:
    """Return a preparation of these steps, with the tokenizer that they name, read from `folder`.

    Raises the errors of `read_steps`.
    """
    tokenizer = b""
    for file in (folder / step.tokenizer for step in steps if isinstance(step, Pieces)):
        try:
            tokenizer = read_file(file, MOST_TOKENIZER_BYTES)
        except OSError as error:
            raise UsageError(f"{name} needs {file}: {cause(error)}") from error
        _tokenizer(tokenizer)
    made = Preparation(steps, tokenizer)
    made.check(name)
    return made


def column_of(data: NDArray[np.uint8] | bytes, offsets: NDArray[np.int64]) -> pa.LargeStringArray:
    """Return texts as an Arrow column: text i is data[offsets[i]:offsets[i + 1]]."""
    buffers = [None, pa.py_buffer(np.ascontiguousarray(offsets)), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.large_string(), len(offsets) - 1, buffers)


def buffers_of(texts: pa.LargeStringArray) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return the bytes of N texts, uint8, and their offsets, int64 [N + 1], which begin at 0."""
    _, starts, data = texts.buffers()
    if not len(texts) or data is None:
        return np.empty(0, np.uint8), np.zeros(len(texts) + 1, np.int64)
    offsets = np.frombuffer(starts, np.int64)[texts.offset : texts.offset + len(texts) + 1]
    return np.frombuffer(data, np.uint8)[offsets[0] : offsets[-1]], offsets - offsets[0]


def _bytes_of(texts: pa.LargeStringArray) -> tuple[bytes, NDArray[np.int64]]:
    """Return the same as `buffers_of`, with the data as `bytes`."""
    data, offsets = buffers_of(texts)
    return data.tobytes(), offsets


def _places(letters: str, raw: bytes) -> NDArray[np.int64]:
    """Return where these letters begin, as indices of bytes.

    NumPy finds a sequence of several bytes ten times as fast as PyArrow and Python do.
    """
    these, data = letters.encode(), np.frombuffer(raw, np.uint8)
    if not all(byte in raw for byte in these):
        return np.empty(0, np.int64)
    found = np.ones(len(data) - len(these) + 1, np.bool_)
    for place, byte in enumerate(these):
        found &= data[place : place + len(found)] == byte
    return np.flatnonzero(found)


def _without_gone(left: NDArray[np.uint8], offsets: NDArray[np.int64]) -> pa.LargeStringArray:
    """Return the texts without the bytes that are `_GONE`. left: the bytes of the texts."""
    offsets = offsets - np.searchsorted(np.flatnonzero(left == _GONE), offsets)
    return column_of(left.tobytes().replace(bytes([_GONE]), b""), offsets)


class _Class:
    """A character class in the syntax of RE2, as a table of code points.

    The first 65,536 code points are looked up at once, the others when a text contains them, in blocks of
    `_BLOCK_POINTS`: to look all of them up takes seconds.
    """

    def __init__(self, characters: str) -> None:
        self._characters = characters
        self._table = np.zeros((-(-sys.maxunicode // _BLOCK_POINTS), _BLOCK_POINTS), np.bool_)
        self._known: set[int] = set()
        self._fill(range((1 << 16) // _BLOCK_POINTS))
        some = np.logical_or.reduceat(self._table.reshape(-1)[: 1 << 16], _FIRSTS).tobytes()
        self._firsts = some[:0x80] + bytes(0x42) + some[0x80:] + bytes([True] * 0x10)

    def _fill(self, blocks: Iterable[int]) -> None:
        """Look up the code points of the blocks that the table does not have yet."""
        for block in {*blocks} - self._known:
            some = [chr(block * _BLOCK_POINTS + i) for i in range(_BLOCK_POINTS)]
            valid = pa.array(["" if "\ud800" <= one <= "\udfff" else one for one in some], pa.large_string())
            found = pc.match_substring_regex(valid, self._characters)
            self._table[block] = found.to_numpy(zero_copy_only=False)
            self._known.add(block)

    def holds(self, raw: bytes) -> NDArray[np.bool_]:
        """Return whether each byte of a text belongs to a character of the class, bool [bytes]."""
        data, held = np.frombuffer(raw, np.uint8), np.frombuffer(bytearray(raw.translate(self._firsts)), np.bool_)
        starts = np.flatnonzero(held & (data >= 0x80))
        first, held[starts] = data[starts], False
        for size, (least, end) in enumerate(pairwise([0xC0, 0xE0, 0xF0, 0x100]), 2):
            some = starts[(first >= least) & (first < end)]
            points = data[some].astype(np.int32) & 0x7F >> size
            for place in range(1, size):
                points = points << 6 | data[some + place] & 0x3F
            if size == 4:
                self._fill(np.unique(points // _BLOCK_POINTS).tolist())
            some = some[self._table.reshape(-1)[points]]
            for place in range(size):
                held[some + place] = True
        return held


_class = lru_cache(maxsize=8)(_Class)


@lru_cache(maxsize=4)
def _tokenizer(content: bytes) -> tuple[Any, Callable[[int], str]]:
    """Return a tokenizer, and a function that decodes one of its pieces.

    Raises UsageError if the package is not installed, or the content is damaged.
    """
    try:
        from tokenizers import Tokenizer

        made = Tokenizer.from_buffer(content)
    except ImportError as error:
        raise UsageError(f"tokenizers is not installed: {install('pieces')}") from error
    except Exception as error:  # the library raises a plain Exception
        raise UsageError(f"the tokenizer of a preparation is damaged: {error}") from error
    made.no_truncation()
    made.no_padding()
    return made, lru_cache(maxsize=None)(lambda piece: made.decode([piece], skip_special_tokens=False))


def _pieces(texts: pa.LargeStringArray, tokenizer: bytes) -> pa.LargeStringArray:
    """Apply the step `Pieces` to texts, [N]."""
    made, decoded = _tokenizer(tokenizer)
    of_each = made.encode_batch_fast(texts.to_pylist(), add_special_tokens=False)
    return pa.array([" ".join(map(decoded, pieces.ids)) for pieces in of_each], pa.large_string())
