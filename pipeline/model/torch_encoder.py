"""Encoders of families that our kernels do not compute: what their folder holds, for PyTorch to compute.

The config, the weights and the tokenizer are as transformers has saved them. `engine/torch_encoder.py` computes them.
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
"""What may follow a Dense module of sentence-transformers: a class of PyTorch's."""


class TorchSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """What decides what PyTorch computes, beside the files.

    Attributes
    ----------
    family : str
        What transformers calls the kind of model, such as "modernbert".
    task : str
        "classifier", whose head is among the weights, or "vectors", to which modules of sentence-transformers may be
        applied.
    width, outputs : int
        Values of a token's vector, and those that are computed for a text.
    most : int
        Tokens of a text that are read, with the ones that frame it.
    inputs : tuple of str
        What the model gets of each token.
    cut : str
        Which side of a longer text is left out: "right" or "left".
    prompt : str
        What each text begins with.
    is_normalised : bool
        Whether vectors are divided by their length in the end.

    """

    family: str
    task: Literal["classifier", "vectors"]
    width: Annotated[int, Meta(ge=1)]
    outputs: Annotated[int, Meta(ge=1)]
    most: Annotated[int, Meta(ge=1, le=MOST_TOKENS)]
    inputs: tuple[Literal["input_ids", "attention_mask", "token_type_ids"], ...]
    cut: Literal["right", "left"] = "right"
    prompt: str = ""
    is_normalised: bool = False


class Stored(NamedTuple):
    """A tensor in a file of safetensors.

    Attributes
    ----------
    dtype : str
        As safetensors names it: "F32", "BF16".
    shape : tuple of int
        Its shape.
    data : uint8 [bytes]
        Its values, in the order of C.

    """

    dtype: str
    shape: tuple[int, ...]
    data: NDArray[np.uint8]


@dataclass(frozen=True)
class TorchEncoder:
    """An encoder in place of a network, which PyTorch computes; immutable.

    Attributes
    ----------
    settings : TorchSettings
        What decides its results beside the files.
    tokens : StoredTokenizer
        Its tokenizer.
    files : mapping of str to ndarray
        uint8 [bytes]: config.json, the weights, and the files of the modules of sentence-transformers, by their path in
        the folder.
    weights : mapping of str to ndarray
        float32: "last" [outputs, classes], a product that follows what PyTorch computes, where there is one.

    """

    settings: TorchSettings
    tokens: StoredTokenizer
    files: Mapping[str, NDArray[np.uint8]] = field(repr=False)
    weights: Mapping[str, NDArray[Any]] = field(default_factory=dict, repr=False)

    feature: ClassVar[str] = "torch_encoder"
    runs_in: ClassVar[str] = "PyTorch"

    @property
    def about(self) -> Any:
        """What decides scores beside the tensors, as JSON values."""
        return msgspec.to_builtins(self.settings)

    @property
    def framing(self) -> int:
        """Tokens that are put before a text and after it, those of a prompt among them."""
        return self.tokens.framing + len(self.tokens.library.encode(self.settings.prompt, add_special_tokens=False))

    @property
    def width(self) -> int:
        """Values of a token's vector."""
        return self.settings.width

    @property
    def outputs(self) -> int:
        """Values of a text's vector."""
        return self.settings.outputs

    @property
    def config(self) -> dict[str, Any]:
        """The content of config.json."""
        return dict(json.loads(self.files[CONFIG].tobytes()))

    @cached_property
    def _shapes(self) -> dict[str, tuple[int, ...]]:
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
        """The tensors of the model itself, by their names. Raises ModelError where a file is damaged."""
        found: dict[str, Stored] = {}
        for name, data in self.files.items():
            if name.endswith(_WEIGHTS) and "/" not in name:
                found |= tensors_of(data, name)
        return found

    def tensors(self) -> dict[str, NDArray[Any]]:
        """All, by their names in a model file."""
        files = {f"{_FILE}{name}": np.asarray(data) for name, data in self.files.items()}
        last = {_LAST: self.weights["last"]} if "last" in self.weights else {}
        return {**files, _TOKENIZER: self.tokens.json, **last}

    @classmethod
    def of_file(cls, settings: TorchSettings, tensors: dict[str, NDArray[Any]], model: str) -> TorchEncoder:
        """Take its files out of the tensors of a model file. Raises ModelError where one is missing."""
        names = [name for name in tensors if name.startswith(_FILE)]
        if _TOKENIZER not in tensors or f"{_FILE}{CONFIG}" not in names:
            raise ModelError(f"{model}: it lacks {CONFIG} or the tokenizer of its encoder: convert it again")
        files = {name.removeprefix(_FILE): tensors.pop(name) for name in names}
        tokens = StoredTokenizer(tensors.pop(_TOKENIZER), settings.cut)
        last = {"last": tensors.pop(_LAST)} if _LAST in tensors else {}
        return cls(settings, tokens, files, last)

    def check(self, classes: int, model: str) -> None:
        """Raise ModelError unless the parts fit each other, and a model of so many classes."""
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
        """The tokens of N texts in valid UTF-8, without a prompt; texts as in `WordPiece.of_texts`."""
        return self.tokens.of_texts(data, offsets, self.settings.most)

    def as_vectors(self) -> TorchEncoder:
        """The same encoder for vectors of length one, without a last product. Those of a classifier are the mean of its
        tokens' vectors, before its head.
        """
        settings = msgspec.structs.replace(self.settings, is_normalised=True)
        if self.settings.task == "classifier":
            settings = msgspec.structs.replace(settings, task="vectors", outputs=self.settings.width)
        return replace(self, settings=settings, weights={})


def tensors_of(data: NDArray[np.uint8], name: str) -> dict[str, Stored]:
    """The tensors of a file of safetensors, which share its memory. Raises ModelError where it is damaged."""
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
