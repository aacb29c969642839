"""Static vectors of an encoder's tokens: the vector that the encoder computes for each token alone, in a cache folder.

This is how model2vec distils an encoder (https://github.com/MinishLab/model2vec): the encoder computes a vector for
each token alone, and a principal component analysis reduces the vectors to the directions in which tokens differ most.
model2vec also weighs tokens by their frequency. Here, `branch.bags` weighs them, by the inverse document frequency in
the labelled rows.

The result is a folder in the format of model2vec, so `vectors.py` reads both in the same way.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import safe_open
from safetensors.numpy import save_file

from ..engine.base import Texts
from ..engine.open import vectors as vectors_of
from ..errors import UsageError, install
from ..kernels.compile import cache_folder
from ..model.encoder_file import FILES
from ..model.loading import load_encoder

_DIMENSIONS = 256  # the default of model2vec
_WORD = re.compile(r"\w+")
_CONTINUES = "##"  # begins a WordPiece token that continues a word
_VERSION = b"1"  # change this if a change of this module changes the vectors


def is_static(folder: Path) -> bool:
    """Return whether a folder holds a table of vectors, in the format of model2vec, and no encoder."""
    path = folder / "model.safetensors"
    if not path.is_file():
        return False
    with safe_open(path, "np") as file:
        shapes = [file.get_slice(name).get_shape() for name in file.keys()]  # noqa: SIM118
    return [len(shape) for shape in shapes].count(2) == 1


def static_folder(
    encoder: Path, device: str, begins: Callable[[Path], None], report: Callable[[int, int], None]
) -> Path:
    """Return the folder with the static vectors of an encoder's tokens. The first call fills it.

    Parameters
    ----------
    encoder : Path
        The encoder's folder.
    device : str
        The device that computes the vectors; see `open_engine`.
    begins : callable
        Called with the folder before this function fills it, which takes some minutes of a core.
    report : callable
        Called now and then with the number of finished tokens, and the number of all tokens.

    Returns
    -------
    Path
        A folder with ``model.safetensors`` and ``tokenizer.json``.

    Raises
    ------
    ModelError
        If the folder holds no encoder that can be computed here.
    UsageError
        If the folder has no tokenizer.json, if the vectors are not finite, or if the cache cannot be written.

    """
    target = cache_folder() / "vectors" / _digest(encoder)
    if target.is_dir():
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent) as name:
            begins(target)
            made = Path(name) / target.name
            made.mkdir()
            save_file({"embeddings": _distilled(encoder, device, report)}, made / "model.safetensors")
            shutil.copyfile(encoder / "tokenizer.json", made / "tokenizer.json")
            if not target.is_dir():  # another process may have been faster, with the same vectors
                made.rename(target)
    except OSError as error:
        remedy = "set BROADSHEET_CACHE_DIR to a folder with room that you may write to"
        raise UsageError(f"static vectors cannot be kept in {target.parent} ({error}): {remedy}") from error
    return target


def _digest(folder: Path) -> str:
    """Return a digest of all files that decide what an encoder computes, and of this module's version."""
    digest = hashlib.sha256(_VERSION)
    for path in sorted({path for pattern in FILES for path in folder.glob(pattern) if path.is_file()}):
        with open(path, "rb") as file:
            content = hashlib.file_digest(file, "sha256").hexdigest()
        digest.update(f"{path.relative_to(folder)} {content}\n".encode())
    return digest.hexdigest()[:32]


def _distilled(folder: Path, device: str, report: Callable[[int, int], None]) -> NDArray[np.float16]:
    """Compute the vectors of an encoder's tokens, [tokens, dimensions].

    A token that is neither a word nor a part of a word has a vector of zeros.
    """
    encoder = load_encoder(str(folder))
    of_tokens = _texts_of_tokens(folder / "tokenizer.json")
    words = sorted({text for text in of_tokens if text}, key=lambda text: (len(text), text))
    texts = Texts.of([word.encode() for word in words])
    vectors = vectors_of(encoder, texts.data, texts.offsets, device, lambda count: report(count, len(words)))
    if not np.isfinite(vectors).all():
        raise UsageError(f"the vectors of {folder} are not all finite: name another encoder")
    centred = vectors - vectors.mean(axis=0)
    _, directions = np.linalg.eigh(centred.T @ centred)  # ascending
    reduced = centred @ directions[:, ::-1][:, :_DIMENSIONS]
    row_of = {word: row for row, word in enumerate(words)}
    table = np.zeros((len(of_tokens), reduced.shape[1]), np.float32)
    for token, text in enumerate(of_tokens):
        if text:
            table[token] = reduced[row_of[text]]
    return table.astype(np.float16)


def _texts_of_tokens(path: Path) -> list[str]:
    """Return the text of each token by its number.

    A token that is neither a word nor a part of a word has an empty text.
    """
    try:
        from tokenizers import Tokenizer
    except ModuleNotFoundError as error:
        raise UsageError(f"an encoder's static vectors need a package: {install('vectors')} ({error})") from error
    if not path.is_file():
        raise UsageError(f"{path.parent} has no tokenizer.json: save the encoder again with a recent transformers")
    tokenizer: Any = Tokenizer.from_str(path.read_text(encoding="utf-8"))
    numbers = tokenizer.get_vocab(with_added_tokens=False).values()
    texts = [""] * (max(numbers, default=-1) + 1)
    for number in numbers:
        text = tokenizer.decode([number]).removeprefix(_CONTINUES).strip()
        texts[number] = text if _WORD.fullmatch(text) else ""
    return texts
