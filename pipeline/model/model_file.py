"""The files of a model: safetensors, the sidecar of a params.bin, what comes with the package, and repositories of the
Hugging Face Hub.

A safetensors file has tensors, and metadata in which each value is JSON text.

`features` in the metadata names the values beside those of version 1 that decide what a model computes, or say what a
tensor is. A reader refuses a feature that it does not know, so a later one needs no new version. Files of version 1
have none.
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
from .alphabet import MAX_SYMBOLS
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
"""The tensor of bytes that is a tokenizer.json, and how many it has at most."""

_CHECKSUM = "checksum"
_DEEPEST = 50
_SURROGATE = re.compile("[\ud800-\udfff]")


class ActivationScales(Struct, frozen=True):
    """The scales of a model's 8-bit activations, found on texts like those that the model will read.

    Attributes
    ----------
    steps : dict of str to float
        By the name of a convolution: what one step of its input stands for, which is a number from 0 to 255.
    found_on : str
        sha256 of the texts on which the steps were found, and of how.

    """

    steps: dict[str, float]
    found_on: Annotated[str, Meta(pattern="^[0-9a-f]{64}$")] = msgspec.field(name="calibration")

    def check(self, layers: Iterable[str], model: str) -> None:
        """Raise ModelError unless there is a usable step for each of these layers, and for no other."""
        if set(self.steps) != set(layers):
            raise ModelError(f"{model}: its activation scales are not those of {', '.join(layers)}")
        for layer, step in self.steps.items():
            if not (math.isfinite(step) and _LEAST <= step <= _MOST):
                raise ModelError(
                    f"{model}: the activation scale of {layer} is {step:g}, outside {_LEAST:g} to {_MOST:g}"
                )


_LEAST, _MOST = 1e-20, 1e20
"""Beyond them, a product of scales might leave the range of fp32."""


class About(Struct):
    """The metadata that gives the tensors their meaning."""

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
    """What a file says of its own content, to be compared with it.

    expected: the checksum in the metadata, None in files written before there was one. values: of the metadata, which
    the checksum covers.
    """

    expected: str | None
    values: dict[str, str]

    def is_damaged(self, digest: str) -> bool:
        """Whether the file is not as it was written. digest: that of the model in it."""
        return self.expected is not None and self.expected != _checksum(self.values, digest)


class _Header(Struct, rename={"metadata": "__metadata__"}):
    """What comes before the tensors; where they lie is left to the library."""

    metadata: dict[str, str] = {}


def read_file(path: Path, most: int) -> bytes:
    """A file of up to `most` bytes. Raises OSError; ModelError for a larger one, or where it is not a regular file."""
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:  # a FIFO would wait
        about = os.fstat(file.fileno())
        if not stat.S_ISREG(about.st_mode):
            raise ModelError(f"{path} is not a regular file")
        if about.st_size > most:
            raise ModelError(f"{path} has {about.st_size:,} bytes, more than any model of this kind ({most:,})")
        return file.read(about.st_size)


def read_model_file(path: Path) -> bytes:
    """The bytes of a model file or params.bin.

    Raises OSError or ValueError where there is no such file; ModelError where it is none, or larger than any model.
    """
    largest = 4 * parameter_count(MAX_SYMBOLS, CLASSES[1], LENGTHS[1]) + MOST_HEADER_BYTES
    largest += MOST_TABLE_BYTES + MOST_BYTES + MOST_TOKENIZER_BYTES + MOST_HASH_BYTES
    return read_file(path, largest)


def branch_of(about: About, tensors: dict[str, NDArray[Any]], name: str) -> NGrams | FastText | None:
    """What a model has beside its network, or in its place; its tensors are taken out of `tensors`."""
    if about.fasttext is not None:
        return FastText.of_file(about.fasttext, tensors, name)
    return None if about.ngrams is None else NGrams.of_file(about.ngrams, tensors, name)


def encoder_of(about: About, tensors: dict[str, NDArray[Any]], name: str) -> Encoder | TorchEncoder | None:
    """The encoder of a model; its tensors are taken out of `tensors`."""
    if about.torch_encoder is not None:
        return TorchEncoder.of_file(about.torch_encoder, tensors, name)
    return None if about.encoder is None else Encoder.of_file(about.encoder, tensors, name)


def encode(tensors: Mapping[str, NDArray[Any]], about: About, layers: list[dict[str, Any]], digest: str) -> bytes:
    """The file; the same values always give the same bytes. layers: a description for people and other programs.
    digest: of the model. A checksum of it and of the metadata is written too, by which damage is noticed.

    Raises ModelError for a card that is too large, or that JSON cannot hold.
    """
    of_model = {name: value for name, value in msgspec.to_builtins(about).items() if value is not None}
    features = [name for name in FEATURES if name in of_model]
    values = {"format": FORMAT, "features": features, "layers": layers, **of_model}
    metadata = {name: _json(value) for name, value in values.items()}
    metadata[_CHECKSUM] = _json(_checksum(metadata, digest))
    file = safetensors.numpy.save(dict(tensors), metadata)
    size = int.from_bytes(file[:8], "little")
    header = json.loads(file[8 : 8 + size])
    # The library writes the metadata in random order, and a model should be one file.
    header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # tensors begin at a multiple of eight bytes
    if len(text) > MOST_HEADER_BYTES:
        raise ModelError(f"the metadata has {len(text):,} bytes, more than {MOST_HEADER_BYTES:,}: shorten the card")
    return len(text).to_bytes(8, "little") + text + file[8 + size :]


def _checksum(metadata: Mapping[str, str], digest: str) -> str:
    """A checksum of the metadata's values, and of the model's digest, which covers the tensors."""
    values = sorted((name, value) for name, value in metadata.items() if name != _CHECKSUM)
    return hashlib.sha256(json.dumps([digest, values]).encode()).hexdigest()


def _json(value: Any) -> str:
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (ValueError, TypeError, RecursionError) as error:
        raise ModelError(f"the card of a model holds JSON values: {error}") from error
    # A lone surrogate stands for a byte of a file name that is not UTF-8; no reader of the file could take it.
    return _SURROGATE.sub(lambda match: f"\\\\u{ord(match[0]):04x}", text)


def decode(data: bytes, name: str) -> tuple[dict[str, NDArray[Any]], About, Record]:
    """Tensors and metadata of a file, and what it says of them. Raises ModelError, whatever the bytes.

    Neither the tensors' shapes nor the checksum are checked yet.
    """
    size = int.from_bytes(data[:8], "little")
    if size > MOST_HEADER_BYTES:
        raise ModelError(f"{name}: not a safetensors file of a model (it claims a header of {size:,} bytes)")
    with _damage_told(f"{name}: not a safetensors file of fp32, fp16 or integer tensors"):
        header = msgspec.json.decode(data[8 : 8 + size], type=_Header)
        tensors = safetensors.numpy.load(data)
    with _damage_told(f"{name}: its metadata is damaged"):
        features = _features(header.metadata, name)
        known = [*features, *(field for field in _OF_EVERY_VERSION if field in header.metadata)]
        about = msgspec.convert({field: msgspec.json.decode(header.metadata[field]) for field in known}, About)
        if _depth(about.card) > _DEEPEST:
            raise ValueError(f"the card is nested more than {_DEEPEST} deep")
        expected = msgspec.json.decode(header.metadata.get(_CHECKSUM, "null"), type=str | None)
    return tensors, about, Record(expected, header.metadata)


def _features(metadata: Mapping[str, str], name: str) -> list[str]:
    """The features of a file. Raises ModelError for one that is unknown, and for an unknown format."""
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
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return 1 + max(map(_depth, inner), default=0)


@contextmanager
def _damage_told(what: str) -> Iterator[None]:
    try:
        yield
    except (safetensors.SafetensorError, ValueError, KeyError, RecursionError) as error:
        raise ModelError(f"{what} ({str(error)[:200]})") from error


class Sidecar(Struct, frozen=True, kw_only=True):
    """The file next to a params.bin for what that has no place for: class names, alphabet, frame, card.

    sha256: of the parameter file that it belongs to. Version 1 knew no frame but the dense one.
    """

    format: Literal["broadsheet-params/1", "broadsheet-params/2"] = "broadsheet-params/2"
    alphabet: str
    classes: list[str]
    frame: Frame = "dense"
    card: dict[str, Any] = {}
    sha256: str


def sidecar_path(params: Path) -> Path:
    """The sidecar's path: that of the parameter file, and `.json`."""
    return params.with_name(f"{params.name}.json")


def read_sidecar(params: Path, data: bytes) -> Sidecar | None:
    """The sidecar of a parameter file with this content; None where there is none.

    Raises ModelError where it is damaged, or belongs to another parameter file.
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
    """The content of the sidecar of a parameter file.

    Parameters
    ----------
    alphabet : str
        The symbols that the model reads.
    classes : list of str
        The names of the classes.
    frame : Frame
        Whether what follows a text's end counts.
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
"""The model in a repository."""

SHARDS = "model.safetensors.index.json"
"""What names the files of weights, where there are several."""


class Fetched(NamedTuple):
    """A file in the cache, and its name, which contains the commit."""

    path: Path
    name: str


def repository_of(url: str) -> tuple[str, str | None]:
    """The repository and the revision, if one is named. Raises UsageError for anything else."""
    repository, _, revision = url.removeprefix(HUB).partition("@")
    if repository.count("/") != 1 or not all(repository.split("/")) or url.endswith("@"):
        raise UsageError(
            f"{url!r:.200} names no repository of the Hub: write hf://user/name or hf://user/name@revision"
        )
    return repository, revision or None


def fetch_from_hub(url: str, others: Sequence[str]) -> Fetched:
    """Download a model, or find it in the cache of huggingface_hub, without which UsageError is raised.

    others: what is fetched too where the file is none of ours; the path is then that of the folder.

    Raises ModelError where the repository, the revision or the file is not there, or the Hub is out of reach and the
    cache lacks it.
    """
    repository, revision = repository_of(url)
    try:
        from huggingface_hub import hf_hub_download, snapshot_download
        from huggingface_hub.errors import EntryNotFoundError
    except ImportError as error:
        raise UsageError(f"huggingface_hub is not installed: {install('hub')}") from error
    try:
        try:
            path = Path(hf_hub_download(repository, HUB_FILE, revision=revision, library_name="broadsheet"))
        except EntryNotFoundError:  # the weights of a large encoder are in several files
            path = Path(hf_hub_download(repository, SHARDS, revision=revision, library_name="broadsheet"))
        folder = path.parent
        if path.name == SHARDS or not _is_ours(path):
            path = Path(snapshot_download(repository, revision=revision, allow_patterns=[*others]))
    except Exception as error:  # of HTTP, the name or the cache, each of another library
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise ModelError(f"{url}: no {HUB_FILE} is to be had there: {reason[:200]}") from error
    return Fetched(path, f"{HUB}{repository}@{folder.name}")


def _is_ours(path: Path) -> bool:
    with open(path, "rb") as file:
        size = int.from_bytes(file.read(8), "little")
        return FORMAT.rpartition("/")[0].encode() in file.read(min(size, MOST_HEADER_BYTES))


class Shipped(NamedTuple):
    """A model that comes with the package.

    Attributes
    ----------
    file : str
        Its file's name.
    digest : str
        The digest of the model that belongs there.

    """

    file: str
    digest: str


SHIPPED = {
    "ag-news": Shipped("ag_news.safetensors", "39696a35f9dc6dc45898dbfd5c8a3ed841f5f17bb68faa65e486acbbd5432c09")
}

COLUMNS_CARD = "columns"
"""The key of a model's card under which it has the columns that it learned from."""

MEANT_FOR = "meant for"
"""The key of a card that says for which texts a model is."""
