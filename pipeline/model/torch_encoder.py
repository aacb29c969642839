"""Encoders of families that our kernels do not support: the files of their folder, from which PyTorch computes them.

The config, the weights and the tokenizer are those that transformers saved. `engine/torch_encoder.py` computes them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import msgspec
import numpy as np
from msgspec import Meta, Struct
from numpy.typing import NDArray

from ..errors import ModelError
from .encoder import MOST_TOKENS, PREFIX
from .stored_tokenizer import StoredTokenizer
from .wordpiece import Tokens

CONFIG = "config.json"
_FILE, _TOKENIZER, _LAST = f"{PREFIX}file ", f"{PREFIX}tokenizer", f"{PREFIX}last"
_WEIGHTS = ".safetensors"

ACTIVATION = re.compile(r"torch\.nn\.(?:modules\.(?:activation|linear)\.)?[A-Z]\w*")
"""The names of activations that a Dense module of sentence-transformers may have: classes of PyTorch."""


class TorchSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """The settings that decide, beside the files, what PyTorch computes.

    `inputs`, `most_tokens`, `cut` and `prompt` are about tokens, `family`, `width` and `task` about the model, and
    `outputs` and `is_normalised` about its result.

    Attributes
    ----------
    family : str
        The name that transformers gives the kind of model, such as "modernbert".
    task : str
        "classifier" for a model with a head among its weights; "vectors" for a model without one, to which modules of
        sentence-transformers may be applied.
    width, outputs : int
        The number of values of a token's vector, and of the values that are computed for a text.
    most_tokens : int
        The largest number of tokens of a text, including those that frame it. Further tokens are not read.
    inputs : tuple of str
        The names of the inputs that the model gets for each token.
    cut : str
        The side on which a longer text is cut: "right" or "left".
    prompt : str
        The beginning that is put before each text.
    is_normalised : bool
        Whether vectors are divided by their length in the end.

    """

    family: str
    task: Literal["classifier", "vectors"]
    width: Annotated[int, Meta(ge=1)]
    outputs: Annotated[int, Meta(ge=1)]
    most_tokens: Annotated[int, Meta(ge=1, le=MOST_TOKENS)] = msgspec.field(name="most")
    inputs: tuple[Literal["input_ids", "attention_mask", "token_type_ids"], ...]
    cut: Literal["right", "left"] = "right"
    prompt: str = ""
    is_normalised: bool = False


class Stored(NamedTuple):
    """A tensor in a safetensors file.

    Attributes
    ----------
    dtype : str
        The dtype by its name in safetensors, such as "F32" or "BF16".
    shape : tuple of int
        The shape.
    data : uint8 [bytes]
        The values, in C order.

    """

    dtype: str
    shape: tuple[int, ...]
    data: NDArray[np.uint8]


@dataclass(frozen=True)
class TorchEncoder:
    """An encoder that PyTorch computes, which replaces the network of a model; immutable.

    Attributes
    ----------
    settings : TorchSettings
        The settings that decide results beside the files.
    tokens : StoredTokenizer
        The tokenizer.
    files : mapping of str to ndarray
        The content, uint8 [bytes], of config.json, the weights, and the modules of sentence-transformers, by the files'
        paths in the folder.
    weights : mapping of str to ndarray
        float32: "last" [outputs, classes], if the result of PyTorch is multiplied with a matrix.

    """

    settings: TorchSettings
    tokens: StoredTokenizer
    files: Mapping[str, NDArray[np.uint8]] = field(repr=False)
    weights: Mapping[str, NDArray[Any]] = field(default_factory=dict, repr=False)

    feature: ClassVar[str] = "torch_encoder"
    runs_in: ClassVar[str] = "PyTorch"

    @property
    def about(self) -> Any:
        """All that decides scores beside the tensors, as JSON values."""
        return msgspec.to_builtins(self.settings)

    @property
    def framing(self) -> int:
        """The number of tokens that are added before a text and after it, including those of a prompt."""
        return self.tokens.framing + len(self.tokens.library.encode(self.settings.prompt, add_special_tokens=False))

    @property
    def width(self) -> int:
        """The number of values of a token's vector."""
        return self.settings.width

    @property
    def outputs(self) -> int:
        """The number of values that are computed for a text."""
        return self.settings.outputs

    @property
    def config(self) -> dict[str, Any]:
        """The content of config.json."""
        return dict(json.loads(self.files[CONFIG].tobytes()))

    @cached_property
    def _shapes(self) -> dict[str, tuple[int, ...]]:
        """The shapes of the tensors of the model itself, by their names."""
        return {name: one.shape for name, one in self.stored().items()}

    @property
    def parameters(self) -> int:
        """The number of weights."""
        return sum(int(np.prod(shape)) for shape in self._shapes.values())

    @property
    def computed_weights(self) -> int:
        """The number of weights that each token is multiplied with."""
        return sum(int(np.prod(shape)) for name, shape in self._shapes.items() if "embeddings." not in name)

    def stored(self) -> dict[str, Stored]:
        """Return the tensors of the model itself, by their names. Raises ModelError if a file is damaged."""
        found: dict[str, Stored] = {}
        for name, data in self.files.items():
            if name.endswith(_WEIGHTS) and "/" not in name:
                found |= tensors_of(data, name)
        return found

    def tensors(self) -> dict[str, NDArray[Any]]:
        """Return all tensors by their names in a model file. A file is a tensor of its bytes."""
        files = {f"{_FILE}{name}": np.asarray(data) for name, data in self.files.items()}
        last = {_LAST: self.weights["last"]} if "last" in self.weights else {}
        return {**files, _TOKENIZER: self.tokens.json, **last}

    @classmethod
    def of_file(cls, settings: TorchSettings, tensors: dict[str, NDArray[Any]], model: str) -> TorchEncoder:
        """Return the encoder of a model file, and remove its tensors from `tensors`.

        Raises ModelError if one is missing.
        """
        names = [name for name in tensors if name.startswith(_FILE)]
        if _TOKENIZER not in tensors or f"{_FILE}{CONFIG}" not in names:
            raise ModelError(f"{model}: it lacks {CONFIG} or the tokenizer of its encoder: convert it again")
        files = {name.removeprefix(_FILE): tensors.pop(name) for name in names}
        tokens = StoredTokenizer(tensors.pop(_TOKENIZER), settings.cut)
        last = {"last": tensors.pop(_LAST)} if _LAST in tensors else {}
        return cls(settings, tokens, files, last)

    def check(self, classes: int, model: str) -> None:
        """Raise ModelError unless the parts fit each other, and a model with this number of classes."""
        for name, data in self.files.items():
            if data.dtype != np.uint8 or data.ndim != 1 or name.startswith("/") or ".." in name.split("/"):
                raise ModelError(f"{model}: {name!r:.80} is no file of an encoder")
        last = self.weights.get("last")
        outputs = self.settings.outputs if last is None else last.shape[-1]
        if outputs != classes or (last is not None and last.shape != (self.settings.outputs, classes)):
            raise ModelError(f"{model}: its encoder has {outputs} outputs for {classes} classes")
        if last is not None and not np.isfinite(last).all():
            raise ModelError(f"{model}: its encoder's last product is not finite")

    def tokens_of(self, data: NDArray[np.uint8], offsets: NDArray[np.int64]) -> Tokens:
        """Return the tokens of N texts in valid UTF-8, without a prompt. data, offsets: as for `WordPiece.of_texts`."""
        return self.tokens.of_texts(data, offsets, self.settings.most_tokens)

    def as_vectors(self) -> TorchEncoder:
        """Return the same encoder for vectors of length one, without a last product.

        The vector of a classifier is the mean of the tokens' vectors, before the head.
        """
        settings = msgspec.structs.replace(self.settings, is_normalised=True)
        if self.settings.task == "classifier":
            settings = msgspec.structs.replace(settings, task="vectors", outputs=self.settings.width)
        return replace(self, settings=settings, weights={})


def tensors_of(data: NDArray[np.uint8], name: str) -> dict[str, Stored]:
    """Return the tensors of a safetensors file, which share its memory. Raises ModelError if the file is damaged."""
    try:
        size = int.from_bytes(data[:8].tobytes(), "little")
        header = json.loads(data[8 : 8 + size].tobytes())
        header.pop("__metadata__", None)
        found = {}
        for key, about in header.items():
            first, last = (8 + size + at for at in about["data_offsets"])
            if not 8 + size <= first <= last <= len(data):
                raise ValueError(f"{key} lies outside")
            found[key] = Stored(about["dtype"], tuple(map(int, about["shape"])), data[first:last])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelError(f"{name} is damaged ({str(error)[:100]}): download or save it again") from error
    return found
