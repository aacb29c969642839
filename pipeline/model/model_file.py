"""The files of a model: safetensors files, the sidecar of a params.bin, the models that come with the package, and
repositories of the Hugging Face Hub.

A safetensors file contains tensors, and metadata in which each value is JSON text.

`features` in the metadata lists the optional metadata values that the file uses: those that version 1 of the format did
not have, and that decide what the model computes or describe a tensor. A reader refuses a file with a feature that it
does not know, so a new feature needs no new version of the format. Files of version 1 have no features.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
import safetensors
import safetensors.numpy
from msgspec import Meta, Struct
from numpy.typing import NDArray

from ..errors import ModelError, UsageError, install
from .alphabet import MAX_SYMBOLS, Alphabet
from .cascade import Cascade
from .encoder import Encoder
from .encoder import Settings as Encoding
from .fasttext import MOST_BYTES, FastText, Settings
from .layers import CLASSES, LENGTHS, Frame, parameter_count
from .learned import MOST_HASH_BYTES
from .learned import About as Learned
from .ngrams import MOST_TABLE_BYTES, Kinds, NGrams
from .scores import ByClass, Heads, Levels
from .torch_encoder import TorchEncoder, TorchSettings

FORMAT = "broadsheet-charcnn/2"
FEATURES = (
    "frame", "scales", "temperature", "ngrams", "thresholds", "ngrams_alone", "cascade", "fasttext", "levels",
    "heads", "by_class", "preparation", "encoder", "torch_encoder", "learned",
)  # fmt: skip
_FIRST_FORMAT = "broadsheet-charcnn/1"
MOST_HEADER_BYTES = 4 << 20
TOKENIZER, MOST_TOKENIZER_BYTES = "preparation.tokenizer", 64 << 20
"""The name of the tensor that holds the bytes of a tokenizer.json, and its largest size in bytes."""

_CHECKSUM = "checksum"
_DEEPEST = 50
_SURROGATE = re.compile("[\ud800-\udfff]")


class ActivationScales(Struct, frozen=True):
    """The scales of a model's 8-bit activations, measured on texts like those that the model will read.

    Attributes
    ----------
    steps : dict of str to float
        For each convolution, by its name: the float value of one step of its quantised input, which is a number from 0
        to 255.
    found_on : str
        The sha256 of the texts on which the steps were measured, and of the way in which they were measured.

    """

    steps: dict[str, float]
    found_on: Annotated[str, Meta(pattern="^[0-9a-f]{64}$")] = msgspec.field(name="calibration")

    def check(self, layers: Iterable[str], model: str) -> None:
        """Raise ModelError unless each of these layers, and no other layer, has a usable step."""
        if set(self.steps) != set(layers):
            raise ModelError(f"{model}: its activation scales are not those of {', '.join(layers)}")
        for layer, step in self.steps.items():
            if not (math.isfinite(step) and _LEAST <= step <= _MOST):
                raise ModelError(
                    f"{model}: the activation scale of {layer} is {step:g}, outside {_LEAST:g} to {_MOST:g}"
                )


_LEAST, _MOST = 1e-20, 1e20
"""The limits of a step. Beyond them, a product of scales might leave the range of fp32."""


class About(Struct):
    """The metadata of a model file that gives the tensors their meaning. `Model` describes each field."""

    alphabet: str
    classes: tuple[str, ...]
    length: Annotated[int, Meta(ge=0, le=1 << 31)]
    card: dict[str, Any] = {}
    frame: Frame = "dense"
    scales: ActivationScales | None = None
    temperature: float | None = None
    ngrams: Kinds | None = None
    thresholds: tuple[float, ...] | None = None
    ngrams_alone: bool | None = None
    cascade: Cascade | None = None
    fasttext: Settings | None = None
    levels: Levels | None = None
    heads: Heads | None = None
    by_class: ByClass | None = None
    preparation: list[dict[str, Any]] | None = None
    encoder: Encoding | None = None
    torch_encoder: TorchSettings | None = None
    learned: Learned | None = None


_OF_EVERY_VERSION = [field for field in About.__struct_fields__ if field not in FEATURES]


class Record(Struct, frozen=True):
    """What a file states about its own content, by which a reader notices damage.

    expected: the checksum in the metadata, or None in a file from before checksums were written. values: the values of
    the metadata, which the checksum covers.
    """

    expected: str | None
    values: dict[str, str]

    def is_damaged(self, digest: str) -> bool:
        """Whether the file differs from what was written. digest: the digest of the model that the file contains."""
        return self.expected is not None and self.expected != _checksum(self.values, digest)


class _Header(Struct, rename={"metadata": "__metadata__"}):
    """The header of a safetensors file, without the tensors' positions, which the safetensors library reads."""

    metadata: dict[str, str] = {}


def read_file(path: Path, most_bytes: int) -> bytes:
    """Read a file of up to `most_bytes` bytes.

    Raises OSError; ModelError for a larger file, or for a path that is not a regular file.
    """
    # Without O_NONBLOCK, opening a FIFO would wait for a writer.
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
        about = os.fstat(file.fileno())
        if not stat.S_ISREG(about.st_mode):
            raise ModelError(f"{path} is not a regular file")
        if about.st_size > most_bytes:
            raise ModelError(f"{path} has {about.st_size:,} bytes, more than any model of this kind ({most_bytes:,})")
        return file.read(about.st_size)


def read_model_file(path: Path) -> bytes:
    """Read the bytes of a model file or params.bin.

    Raises OSError or ValueError if there is no such file; ModelError if the path is not a regular file, or the file is
    larger than any model.
    """
    largest = 4 * parameter_count(MAX_SYMBOLS, CLASSES[1], LENGTHS[1]) + MOST_HEADER_BYTES
    largest += MOST_TABLE_BYTES + MOST_BYTES + MOST_TOKENIZER_BYTES + MOST_HASH_BYTES
    return read_file(path, largest)


def alphabet_of(symbols: str, name: str) -> Alphabet:
    """Return the alphabet of a model file. Raises ModelError where `Alphabet` raises ValueError."""
    try:
        return Alphabet(symbols)
    except ValueError as error:
        raise ModelError(f"{name}: {error}") from error


def branch_of(about: About, tensors: dict[str, NDArray[Any]], name: str) -> NGrams | FastText | None:
    """Return the n-grams or the fastText table of a model file, and remove their tensors from `tensors`.

    None for a model that has neither. A table of n-grams stands beside a network or replaces it; a fastText table
    always replaces it.
    """
    if about.fasttext is not None:
        return FastText.of_file(about.fasttext, tensors, name)
    return None if about.ngrams is None else NGrams.of_file(about.ngrams, tensors, name)


def encoder_of(about: About, tensors: dict[str, NDArray[Any]], name: str) -> Encoder | TorchEncoder | None:
    """Return the encoder of a model file, or None, and remove its tensors from `tensors`."""
    if about.torch_encoder is not None:
        return TorchEncoder.of_file(about.torch_encoder, tensors, name)
    return None if about.encoder is None else Encoder.of_file(about.encoder, tensors, name)


def encode(tensors: Mapping[str, NDArray[Any]], about: About, layers: list[dict[str, Any]], digest: str) -> bytes:
    """Return the bytes of a model file. The same values always give the same bytes.

    layers: a description of the layers for people and other programs. digest: the digest of the model. The file also
    gets a checksum of the digest and the metadata, by which a reader notices damage.

    Raises ModelError for a card that is too large, or that JSON cannot represent.
    """
    # Collect the metadata, and add the checksum that covers it.
    of_model = {name: value for name, value in msgspec.to_builtins(about).items() if value is not None}
    features = [name for name in FEATURES if name in of_model]
    values = {"format": FORMAT, "features": features, "layers": layers, **of_model}
    metadata = {name: _json(value) for name, value in values.items()}
    metadata[_CHECKSUM] = _json(_checksum(metadata, digest))
    # Let the library write the file, then replace its header.
    file = safetensors.numpy.save(dict(tensors), metadata)
    size = int.from_bytes(file[:8], "little")
    header = json.loads(file[8 : 8 + size])
    # Sort the metadata, which the library writes in random order: the same model must always give the same file.
    header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # the tensors begin at a multiple of eight bytes
    if len(text) > MOST_HEADER_BYTES:
        raise ModelError(f"the metadata has {len(text):,} bytes, more than {MOST_HEADER_BYTES:,}: shorten the card")
    return len(text).to_bytes(8, "little") + text + file[8 + size :]


def _checksum(metadata: Mapping[str, str], digest: str) -> str:
    """Return a checksum of the metadata's values and the model's digest, which covers the tensors."""
    values = sorted((name, value) for name, value in metadata.items() if name != _CHECKSUM)
    return hashlib.sha256(json.dumps([digest, values]).encode()).hexdigest()


def _json(value: Any) -> str:
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (ValueError, TypeError, RecursionError) as error:
        raise ModelError(f"the card of a model holds JSON values: {error}") from error
    # Spell out a lone surrogate (a byte of a file name that is not UTF-8), since no reader could decode it.
    return _SURROGATE.sub(lambda match: f"\\\\u{ord(match[0]):04x}", text)


def decode(data: bytes, name: str) -> tuple[dict[str, NDArray[Any]], About, Record]:
    """Return the tensors and the metadata of a file, and its record, with which `Record.is_damaged` compares them.

    Raises ModelError for bytes that are not a model file, whatever they are. The caller still has to check the shapes
    of the tensors and the checksum.
    """
    size = int.from_bytes(data[:8], "little")
    if size > MOST_HEADER_BYTES:
        raise ModelError(f"{name}: not a safetensors file of a model (it claims a header of {size:,} bytes)")
    with _damage_as_model_error(f"{name}: not a safetensors file of fp32, fp16 or integer tensors"):
        header = msgspec.json.decode(data[8 : 8 + size], type=_Header)
        tensors = safetensors.numpy.load(data)
    with _damage_as_model_error(f"{name}: its metadata is damaged"):
        features = _features(header.metadata, name)
        known = [*features, *(field for field in _OF_EVERY_VERSION if field in header.metadata)]
        about = msgspec.convert({field: msgspec.json.decode(header.metadata[field]) for field in known}, About)
        if _depth(about.card) > _DEEPEST:
            raise ValueError(f"the card is nested more than {_DEEPEST} deep")
        expected = msgspec.json.decode(header.metadata.get(_CHECKSUM, "null"), type=str | None)
    return tensors, about, Record(expected, header.metadata)


def _features(metadata: Mapping[str, str], name: str) -> list[str]:
    """Return the names of a file's features. Raises ModelError for an unknown feature or an unknown format."""
    kind = msgspec.json.decode(metadata.get("format", "null"))
    if kind == _FIRST_FORMAT:
        return []
    if kind != FORMAT:
        raise ModelError(f"{name}: its metadata says format {kind!r:.80}, this version reads up to {FORMAT!r}")
    features = msgspec.json.decode(metadata["features"], type=list[str])
    for feature in features:
        if feature not in FEATURES:
            raise ModelError(f"{name}: the model uses {feature!r:.80}, which this version does not know: upgrade it")
    return features


def _depth(value: Any) -> int:
    """Return how deep lists and dicts are nested: 1 for a plain value."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return 1 + max(map(_depth, inner), default=0)


@contextmanager
def _damage_as_model_error(what: str) -> Iterator[None]:
    """Raise ModelError, which begins with `what`, in place of the errors that a damaged file causes."""
    try:
        yield
    except (safetensors.SafetensorError, ValueError, KeyError, RecursionError) as error:
        raise ModelError(f"{what} ({str(error)[:200]})") from error


class Sidecar(Struct, frozen=True, kw_only=True):
    """The JSON file next to a params.bin, for what a params.bin cannot hold: class names, alphabet, frame and card.

    sha256: the sha256 of the parameter file that the sidecar belongs to. Version 1 had only the dense frame.
    """

    format: Literal["broadsheet-params/1", "broadsheet-params/2"] = "broadsheet-params/2"
    alphabet: str
    classes: list[str]
    frame: Frame = "dense"
    card: dict[str, Any] = {}
    sha256: str


def sidecar_path(params: Path) -> Path:
    """Return the sidecar's path: the path of the parameter file with `.json` appended."""
    return params.with_name(f"{params.name}.json")


def read_sidecar(params: Path, data: bytes) -> Sidecar | None:
    """Read the sidecar of a parameter file. data: the content of the parameter file.

    Returns None if there is no sidecar. Raises ModelError if it is damaged, or belongs to another parameter file.
    """
    path = sidecar_path(params)
    try:
        sidecar = msgspec.json.decode(read_file(path, MOST_HEADER_BYTES), type=Sidecar)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(
            f"{path}, which has the class names of {params.name}, is damaged ({str(error)[:200]}): remove it, and give "
            "--classes to broadsheet convert"
        ) from error
    if sidecar.sha256 != hashlib.sha256(data).hexdigest():
        raise ModelError(f"{path} belongs to another {params.name}: one of the two was replaced. Remove {path.name}")
    return sidecar


def sidecar_json(alphabet: str, classes: list[str], frame: Frame, card: dict[str, Any], data: bytes) -> bytes:
    """Return the content of the sidecar of a parameter file.

    Parameters
    ----------
    alphabet : str
        The symbols that the model reads.
    classes : list of str
        The names of the classes.
    frame : Frame
        How the model treats positions after the end of a text, as in `Model.frame`.
    card : dict
        The model's card.
    data : bytes
        The content of the parameter file.

    """
    digest = hashlib.sha256(data).hexdigest()
    sidecar = Sidecar(alphabet=alphabet, classes=classes, frame=frame, card=card, sha256=digest)
    return msgspec.json.format(msgspec.json.encode(sidecar), indent=1) + b"\n"


HUB = "hf://"
HUB_FILE = "model.safetensors"
"""The name of the model file in a repository."""

SHARDS = "model.safetensors.index.json"
"""The name of the index that lists the files of weights, in a repository that has several."""


class Fetched(NamedTuple):
    """A file or folder in the cache, and the name of the model, which contains the commit."""

    path: Path
    name: str


def repository_of(url: str) -> tuple[str, str | None]:
    """Split an ``hf://`` URL into the repository and the revision, None if the URL has none. Raises UsageError."""
    repository, _, revision = url.removeprefix(HUB).partition("@")
    if repository.count("/") != 1 or not all(repository.split("/")) or url.endswith("@"):
        raise UsageError(
            f"{url!r:.200} names no repository of the Hub: write hf://user/name or hf://user/name@revision"
        )
    return repository, revision or None


def fetch_from_hub(url: str, others: Sequence[str]) -> Fetched:
    """Download a model, or find it in the cache of huggingface_hub.

    others: patterns of the files to fetch as well if the repository's model.safetensors is no model file of Broadsheet.
    The returned path is then the folder, else the file.

    Raises UsageError if huggingface_hub is not installed; ModelError if the repository, the revision or the file does
    not exist, or if the Hub cannot be reached and the cache lacks the file.
    """
    repository, revision = repository_of(url)
    # Import here: the package is optional.
    try:
        from huggingface_hub import hf_hub_download, snapshot_download
        from huggingface_hub.errors import EntryNotFoundError
    except ImportError as error:
        raise UsageError(f"huggingface_hub is not installed: {install('hub')}") from error
    # Fetch the file of weights, or the index of a large encoder, whose weights are in several files.
    try:
        try:
            path = Path(hf_hub_download(repository, HUB_FILE, revision=revision, library_name="broadsheet"))
        except EntryNotFoundError:
            path = Path(hf_hub_download(repository, SHARDS, revision=revision, library_name="broadsheet"))
        folder = path.parent
        # Fetch the rest of the folder of an encoder that transformers saved.
        if path.name == SHARDS or not _is_ours(path):
            path = Path(snapshot_download(repository, revision=revision, allow_patterns=[*others]))
    except Exception as error:  # errors of HTTP, of the name and of the cache come from different libraries
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise ModelError(f"{url}: no {HUB_FILE} is to be had there: {reason[:200]}") from error
    return Fetched(path, f"{HUB}{repository}@{folder.name}")


def _is_ours(path: Path) -> bool:
    """Whether a safetensors file is a model file of Broadsheet."""
    with open(path, "rb") as file:
        size = int.from_bytes(file.read(8), "little")
        return FORMAT.rpartition("/")[0].encode() in file.read(min(size, MOST_HEADER_BYTES))


class Shipped(NamedTuple):
    """A model that comes with the package.

    Attributes
    ----------
    file : str
        The name of its file.
    digest : str
        The digest of the model that the file must contain.

    """

    file: str
    digest: str


SHIPPED = {
    "ag-news": Shipped("ag_news.safetensors", "39696a35f9dc6dc45898dbfd5c8a3ed841f5f17bb68faa65e486acbbd5432c09")
}

COLUMNS_CARD = "columns"
"""The key of a model's card under which the card has the columns that the model learned from."""

MEANT_FOR = "meant for"
"""The key of a model's card under which the card says which texts the model is meant for."""
