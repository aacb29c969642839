"""A tokenizer as a model file stores it: the JSON of the library `tokenizers`, which splits texts into tokens.

The tokens may depend on the version of the library, so an engine names the version in its backend.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ..errors import ModelError, UsageError, install
from .wordpiece import Tokens

Integers = NDArray[np.int64]

_LONGEST_WORD = 16
"""The number of tokens above which a word may be split between any two of them, since some scripts have no spaces."""


@dataclass(frozen=True)
class StoredTokenizer:
    """A tokenizer of any kind; immutable.

    Attributes
    ----------
    json : uint8 [bytes]
        The content of a ``tokenizer.json``, in UTF-8.
    cut : str
        The side on which a text is cut if it has too many tokens: "right" or "left".

    """

    json: NDArray[np.uint8] = field(repr=False)
    cut: Literal["right", "left"] = "right"

    @cached_property
    def library(self) -> Any:
        """The `tokenizers.Tokenizer`, which neither pads nor cuts.

        Raises UsageError if `tokenizers` is missing, and ModelError if it cannot read the JSON.
        """
        try:
            from tokenizers import Tokenizer
        except ImportError as error:
            raise UsageError(f"tokenizers is not installed: {install('pieces')}") from error
        try:
            tokenizer = Tokenizer.from_str(self.json.tobytes().decode())
        except Exception as error:  # the library raises a plain Exception
            raise ModelError(f"tokenizers does not read the tokenizer of this model: {str(error)[:200]}") from error
        tokenizer.no_padding()
        tokenizer.no_truncation()
        return tokenizer

    @cached_property
    def _cutting(self) -> dict[int, Any]:
        """The tokenizers that cut texts, by the number of tokens to which they cut."""
        return {}

    @property
    def framing(self) -> int:
        """The number of tokens that are added before and after a text."""
        return int(self.library.num_special_tokens_to_add(False))

    @property
    def size(self) -> int:
        """One more than the largest number of a token."""
        return 1 + max(self.library.get_vocab().values(), default=0)

    def encoded(self, texts: list[str], most_tokens: int) -> list[Any]:
        """Return the `tokenizers.Encoding` of each text, cut to `most_tokens`, on all cores and without offsets."""
        if most_tokens not in self._cutting:
            cutting = type(self.library).from_str(self.library.to_str())
            cutting.enable_truncation(most_tokens, direction=self.cut)
            self._cutting[most_tokens] = cutting
        return list(self._cutting[most_tokens].encode_batch_fast(texts))

    def of_texts(self, data: NDArray[np.uint8], offsets: Integers, most_tokens: int) -> Tokens:
        """Return the tokens of N texts in valid UTF-8, including those that frame each text.

        Parameters
        ----------
        data : uint8 [bytes]
            The texts, one after another.
        offsets : int64 [N + 1]
            Text i is ``data[offsets[i]:offsets[i + 1]]``.
        most_tokens : int
            The largest number of tokens of a text. Further tokens are cut off.

        """
        encoded = self.encoded([*strings(data, offsets)], most_tokens)
        ends = np.cumsum([0, *(len(one.ids) for one in encoded)], dtype=np.int64)
        ids = np.fromiter((token for one in encoded for token in one.ids), np.int64, int(ends[-1]))
        return Tokens(ids, ends, np.array([bool(one.overflowing) for one in encoded], np.bool_))

    def words_of(self, text: str) -> tuple[Integers, Integers]:
        """Return where each word of a text begins, in code points, and how many tokens it has, [words] each.

        Words are the parts into which the tokenizer splits a text before it looks for tokens. A word of more than 16
        tokens, as in scripts without spaces, may end after any of its tokens.
        """
        encoded = self.library.encode(text, add_special_tokens=False)
        if not encoded.ids:
            return np.empty(0, np.int64), np.empty(0, np.int64)
        words = np.array([-1 if word is None else word for word in encoded.word_ids], np.int64)
        starts = np.array([start for start, _ in encoded.offsets], np.int64)
        begins = np.append(True, words[1:] != words[:-1])
        sizes = np.diff(np.append(np.flatnonzero(begins), len(words)))
        begins |= np.repeat(sizes > _LONGEST_WORD, sizes)
        begins[1:] &= starts[1:] > np.maximum.accumulate(starts)[:-1]  # one character may have several tokens
        first = np.flatnonzero(begins)
        return starts[first], np.diff(np.append(first, len(words)))


def strings(data: NDArray[np.uint8], offsets: Integers) -> Iterator[str]:
    """Yield the texts of a buffer. See `StoredTokenizer.of_texts`."""
    for first, last in pairwise(offsets.tolist()):
        yield data[first:last].tobytes().decode()
