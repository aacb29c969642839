"""A model: weights with their alphabet, classes and settings; how it is loaded and saved."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from ..errors import ModelError, UsageError
from ..storage.disk import write_file
from . import encoder_file, encoder_folder, fasttext_file, model_file, scores
from .alphabet import PUBLISHED, Alphabet
from .cascade import ASKS, Cascade
from .encoder import Encoder
from .fasttext import ALPHABET, FastText
from .layers import (
    BIAS,
    CLASSES,
    FRAMES,
    HIDDEN,
    PUBLISHED_LENGTH,
    WHOLE,
    Frame,
    Layer,
    check_tensors,
    layer_table,
    parameter_count,
)
from .learned import TENSOR as HASHES
from .learned import LearnedRows
from .model_file import COLUMNS_CARD, MEANT_FOR, SHIPPED, ActivationScales
from .ngrams import NGrams
from .scores import ByClass, Levels
from .torch_encoder import TorchEncoder

if TYPE_CHECKING:
    from .preparation import Preparation


@dataclass(frozen=True)
class Model:
    """Weights, with the alphabet and the class names that give them meaning; immutable.

    The fields belong to five groups:

    - the text: `preparation`, `alphabet`, `length`, `frame`
    - the parts that compute logits: the network in `tensors`, with `scales`; `ngrams`; `encoder`; `cascade`, which
      chooses the texts that need more than the n-grams
    - from logits to scores and labels: `temperature`, `by_class`
    - the labels: `classes`, with `thresholds`, `levels` or `heads` if a text does not simply get one label
    - about the model: `name`, `card`, `learned`, which change no score

    Attributes
    ----------
    alphabet : Alphabet
        The characters that the model reads.
    classes : tuple of str
        The names of the labels, in the order of the last layer's outputs.
    length : int
        How many characters of each article the model reads, from 64 to 4,096; `layers.WHOLE` for a model of fastText or
        an encoder, which reads whole texts.
    tensors : mapping of str to ndarray
        The network's weights by PyTorch's names and in its shapes (see `Layer.shapes`), float32 or float16. A model
        without a network has only ``fc3.bias``.
    card : mapping
        JSON values about the origin of the weights: data, recipe, accuracy.
    name : str
        The name in reports and messages.
    frame : str
        "text" if block 1's output is zero after the end of an article's text, else "dense".
    scales : ActivationScales, optional
        The scales that `quantise` measured. The model computes in int8 with them.
    temperature : float
        The temperature that `calibrate` fitted. The logits are divided by it before the softmax, which changes scores
        and no label. 1 changes nothing.
    ngrams : NGrams or FastText, optional
        A branch beside the network, whose scores are added to the network's logits; or the table of a fastText model,
        which has no network.
    thresholds : tuple of float, optional
        For a model that gives several labels to a text: the least score of each class. A class's score is the sigmoid
        of its logit, and a text gets the label of each class whose score reaches its threshold. None for a model that
        gives one label.
    cascade : Cascade, optional
        The margin that `train` or `calibrate` fitted. With it, the network or encoder scores only the texts that the
        n-grams are not sure about; without it, all texts.
    levels : Levels, optional
        For a model that gives each text a number: the scale of the numbers. A text's score is its number, and its label
        is the nearest level.
    heads : tuple of (str, int), optional
        For a model that gives each text a label for each of several columns: the name of each column, and how many of
        the classes, in order, belong to it. The names of these classes are "column: class".
    by_class : ByClass, optional
        What `calibrate` fitted with `by_class`: for each class, how likely a label with a given score is right.
    preparation : Preparation, optional
        The steps that change a text before the model reads it.
    encoder : Encoder or TorchEncoder, optional
        The encoder that computes the logits in place of a network, with ``fc3.bias`` as its last bias. In a model with
        n-grams and a cascade, the n-grams have scores of their own, and the encoder scores only some texts.
    learned : LearnedRows, optional
        Hashes by which rows that the model has learned are recognised. They change no score, and are not part of the
        digest.

    Raises
    ------
    ModelError
        If a tensor is missing, unknown, misshapen or not finite, a class has no name, two classes have the same name,
        the frame is unknown, scales, n-grams, thresholds or heads do not fit the model, or the temperature is out of
        range.

    Examples
    --------
    >>> model = broadsheet.load_model("ag-news")
    >>> model.classes
    ('World', 'Sports', 'Business', 'Sci/Tech')
    >>> model.length
    1014

    """

    alphabet: Alphabet
    classes: tuple[str, ...]
    length: int
    tensors: Mapping[str, NDArray[Any]] = field(repr=False)
    card: Mapping[str, Any] = field(default=None, repr=False)  # type: ignore[arg-type]  # that can be shown
    name: str = "model"
    frame: Frame = "dense"
    scales: ActivationScales | None = field(default=None, repr=False)
    temperature: float = 1.0
    ngrams: NGrams | FastText | None = field(default=None, repr=False)
    thresholds: tuple[float, ...] | None = field(default=None, repr=False)
    cascade: Cascade | None = field(default=None, repr=False)
    levels: Levels | None = field(default=None, repr=False)
    heads: tuple[tuple[str, int], ...] | None = field(default=None, repr=False)
    by_class: ByClass | None = field(default=None, repr=False)
    preparation: Preparation | None = field(default=None, repr=False)
    encoder: Encoder | TorchEncoder | None = field(default=None, repr=False)
    learned: LearnedRows | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if self.card is None:
            object.__setattr__(self, "card", {})
        # Check the classes, and the tensors against the layer table.
        scores.check_classes(self.classes, self.name, self.heads)
        if self.frame not in FRAMES:
            raise ModelError(f"{self.name}: frame {self.frame!r:.80}: a model has one of {', '.join(FRAMES)}")
        try:
            expected = {n: s for layer in self.layers for n, s in layer.shapes.items()}
        except ModelError as error:
            raise ModelError(f"{self.name}: {error.message}") from error
        if self._has_bias_alone:
            expected = {BIAS: expected[BIAS]}
        check_tensors(self.tensors, expected, self.name)
        # Check each optional part, and that the parts fit together.
        if self.scales is not None:
            convolutions = [layer.name for layer in self.layers if layer.kind == "conv1d" and not layer.is_lookup]
            self.scales.check(convolutions, self.name)
        if not scores.TEMPERATURES[0] <= self.temperature <= scores.TEMPERATURES[1]:
            lowest, highest = scores.TEMPERATURES
            raise ModelError(f"{self.name}: temperature {self.temperature:g} is outside {lowest:g} to {highest:g}")
        if self.ngrams is not None:
            self.ngrams.check(len(self.classes), self.length, self.is_multi_label, self.name)
        if self.cascade is not None:
            self.cascade.check(len(self.classes), self.name)
            if self.ngrams is None or not (self.has_network or self.encoder):
                raise ModelError(f"{self.name}: a margin for its n-grams, without n-grams or without a network")
        if self.encoder is not None:
            self.encoder.check(len(self.classes), self.name)
            is_chain = self.ngrams is not None and self.cascade is not None
            alone = self._has_bias_alone and self.heads is None and (self.ngrams is not None) == is_chain
            if not alone or (is_chain and self.is_multi_label):
                what = "an encoder with a network, heads, or n-grams that cannot be asked first"
                raise ModelError(f"{self.name}: {what}")
        # Check the fields that turn logits into scores and labels.
        if self.thresholds is not None:
            scores.check_thresholds(self.thresholds, self.classes, self.name)
        if self.levels is not None:
            self.levels.check(self._has_bias_alone and not self.is_multi_label, self.name)
        if self.heads is not None and (self.link != scores.SOFTMAX or self.cascade is not None or self.length == WHOLE):
            raise ModelError(f"{self.name}: a model with heads has no thresholds, levels, margin or fastText's table")
        if self.by_class is not None:
            self.by_class.check(len(self.classes), self.name)
        if self.by_class is not None and (self.link != scores.SOFTMAX or self.heads is not None):
            raise ModelError(f"{self.name}: a model that does not give one label by softmax has no scores by class")
        if self.temperature != 1 and self.link != scores.SOFTMAX:
            raise ModelError(f"{self.name}: a model whose scores are no softmax has no temperature")

    @cached_property
    def layers(self) -> tuple[Layer, ...]:
        """The network's nine blocks, in order; a single one for a model that has no network and reads whole texts."""
        return layer_table(len(self.alphabet), self.length, len(self.classes))

    @property
    def reads(self) -> int:
        """How many characters at the beginning of an article decide its label. Others only count in `n_chars`.

        >>> broadsheet.load_model("ag-news").reads
        1014
        """
        if self.preparation is not None or self.encoder is not None:
            return WHOLE
        return self.length if self.ngrams is None else max(self.length, self.ngrams.kinds.reads)

    @property
    def _has_bias_alone(self) -> bool:
        """Whether `tensors` has no network, because n-grams or an encoder replace it."""
        return (self.ngrams is not None or self.encoder is not None) and set(self.tensors) == {BIAS}

    @property
    def window(self) -> int:
        """How many characters a window of a long text has: those that the network reads or, without one, `reads`."""
        return self.length if self.has_network else self.reads

    @cached_property
    def has_network(self) -> bool:
        """Whether the model has a network that changes scores.

        Older files of n-grams alone contain a network of zeros, which does not count.
        """
        return not self._has_bias_alone and bool(self.tensors["fc3.weight"].any())

    @property
    def second(self) -> str:
        """The name, for messages, of the part that scores the texts that the n-grams are not sure about."""
        return "network" if self.encoder is None else "encoder"

    def asking(self, network: str) -> Model:
        """Return the same model with another choice of the texts that its network scores.

        Parameters
        ----------
        network : str
            "all"; "none"; or "uncertain", which chooses by the model's margin, and is "all" for a model without one.

        Returns
        -------
        Model
            The model, with a digest of its own.

        Raises
        ------
        UsageError
            For "none", if the model has no scores without its network.

        """
        if network not in ASKS:
            raise UsageError(f"network {network!r}: choose one of {', '.join(ASKS)}")
        # Use the margin, or drop it to score all texts.
        if network != "none" or not (self.has_network or self.encoder):
            if network == "uncertain" or self.cascade is None:
                return self
            return replace(self, cascade=None, ngrams=self.ngrams if self.encoder is None else None)
        # Drop the network, if the cascade has what the n-grams need to score all texts alone.
        if self.heads is not None:
            raise UsageError(f"{self.name} has heads, which need its network: leave out --network none")
        if self.cascade is None:
            remedy = "calibrate" if self.ngrams is not None else "train"
            raise UsageError(
                f"{self.name} has no scores without its network: leave out --network none, or make a model that has "
                f"them, with broadsheet {remedy}"
            )
        bias = {BIAS: np.array(self.cascade.bias, np.float32)}
        temperature = self.cascade.temperature
        return replace(self, tensors=bias, temperature=temperature, scales=None, cascade=None, encoder=None)

    @property
    def is_calibrated(self) -> bool:
        """Whether a temperature was fitted to the model's scores. A fitted temperature may be 1."""
        return self.temperature != 1 or scores.CARD in self.card

    @property
    def meant_for(self) -> str | None:
        """A description of the texts that the model was trained on, from its card; None if the card has none."""
        meant_for = self.card.get(MEANT_FOR)
        return None if meant_for is None else str(meant_for)

    @property
    def join(self) -> str:
        """The template that joined several columns into the texts that the model learned, from its card; else ""."""
        columns = self.card.get(COLUMNS_CARD)
        template = columns.get("join", "") if isinstance(columns, Mapping) else ""
        return template if isinstance(template, str) else ""

    def joining(self, template: str) -> Model:
        """Return the same model, for texts that a template makes.

        Parameters
        ----------
        template : str
            The template, as `classify` takes it for ``join``.

        Returns
        -------
        Model
            The model with the template in its card. Its digest stays the same, since the template changes no text's
            score.

        """
        before = self.card.get(COLUMNS_CARD)
        other_values = {"label": before["label"]} if isinstance(before, Mapping) and "label" in before else {}
        return replace(self, card={**self.card, COLUMNS_CARD: {**other_values, "join": template}})

    @property
    def is_multi_label(self) -> bool:
        """Whether the model gives each text any number of labels, rather than one."""
        return self.thresholds is not None

    @property
    def link(self) -> int:
        """The number of the function from logits to scores, such as `scores.SOFTMAX`."""
        if isinstance(self.ngrams, FastText):
            return self.ngrams.link
        return scores.GIVEN if self.levels is not None else scores.SIGMOID if self.is_multi_label else scores.SOFTMAX

    @property
    def parameters(self) -> int:
        """The number of weights of the network, the table of n-grams and the encoder."""
        of_encoder = 0 if self.encoder is None else self.encoder.parameters
        in_table = 0 if self.ngrams is None else self.ngrams.table.size
        return sum(t.size for t in self.tensors.values()) + in_table + of_encoder

    @property
    def weight_bytes(self) -> int:
        """The size of all weights in bytes."""
        return sum(tensor.nbytes for tensor in (*self.tensors.values(), *self._beside.values()))

    @property
    def mapped_bytes(self) -> int:
        """The size in bytes of those weights that all processes of a machine share, by mapping one file."""
        return sum(tensor.nbytes for tensor in self._beside.values() if isinstance(tensor, np.memmap))

    @property
    def dtype(self) -> str:
        """The dtype of the weights, "float32" or "float16"."""
        return str(self.tensors[BIAS].dtype)

    @cached_property
    def digest(self) -> str:
        """The sha256 of all that decides a score: alphabet, classes, length, frame, scales, temperature, n-grams,
        thresholds, margin, levels, heads, scores by class, preparation, encoder and tensors.
        """
        # Leave out each default, so that a new feature changes no digest of a model that lacks it.
        features: dict[str, Any] = {
            "frame": None if self.frame == "dense" else self.frame,
            "steps": self.scales and self.scales.steps,
            "temperature": None if self.temperature == 1 else self.temperature,
            **({self.ngrams.feature: self.ngrams.about} if self.ngrams else {}),
            "thresholds": self.thresholds,
            "cascade": self.cascade and self.cascade.about,
            "levels": self.levels and _about_levels(self.levels),
            "heads": self.heads,
            "by_class": self.by_class and [self.by_class.slopes, self.by_class.shifts],
            "preparation": self.preparation and self.preparation.id,
            **({self.encoder.feature: self.encoder.about} if self.encoder else {}),
        }
        about: list[Any] = [self.alphabet.symbols, self.classes, self.length]
        about += [{name: value} for name, value in features.items() if value is not None]
        # Hash the description, then each tensor with its name and dtype.
        digest = hashlib.sha256(json.dumps(about).encode())
        for name in sorted(stored := {**self.tensors, **self._beside}):
            tensor = np.ascontiguousarray(stored[name])
            digest.update(f"{name} {tensor.dtype.str}".encode())
            digest.update(tensor.data)
        return digest.hexdigest()

    @property
    def _beside(self) -> dict[str, NDArray[Any]]:
        """The tensors of the n-grams and the encoder, by their names in a model file."""
        return {name: t for part in (self.ngrams, self.encoder) if part for name, t in part.tensors().items()}

    def to_bytes(self, dtype: str | None = None) -> bytes:
        """Encode the model as a safetensors file.

        Parameters
        ----------
        dtype : str, optional
            The dtype of the network's weights in the file, "float32" or "float16". Default: the dtype that they have.

        Returns
        -------
        bytes
            The content of the file. The same model always gives the same bytes.

        Raises
        ------
        ModelError
            If a weight does not fit `dtype`.

        """
        # Convert the network's weights, which changes the digest.
        tensors, digest = {n: np.ascontiguousarray(t, dtype or t.dtype) for n, t in self.tensors.items()}, self.digest
        if dtype is not None:
            for name, tensor in tensors.items():
                if not np.isfinite(tensor).all():
                    raise ModelError(f"tensor {name} does not fit {dtype}")
            digest = replace(self, tensors=tensors).digest
        # Describe the model, and collect its tensors.
        about = model_file.About(
            self.alphabet.symbols, self.classes, self.length, dict(self.card), self.frame, self.scales,
            temperature=None if self.temperature == 1 else self.temperature, thresholds=self.thresholds,
            ngrams_alone=(self._has_bias_alone and self.encoder is None) or None,
            cascade=self.cascade, levels=self.levels, heads=self.heads, by_class=self.by_class,
            encoder=self.encoder.settings if isinstance(self.encoder, Encoder) else None,
            torch_encoder=self.encoder.settings if isinstance(self.encoder, TorchEncoder) else None,
            learned=None if self.learned is None else self.learned.about,
            **({} if self.ngrams is None else {self.ngrams.feature: self.ngrams.kinds}),  # type: ignore[arg-type]
        )  # fmt: skip
        layers = [] if self._has_bias_alone else [layer.description for layer in self.layers]
        stored = tensors | self._beside
        if self.preparation is not None:
            about.preparation = msgspec.to_builtins(self.preparation.steps)
            stored[model_file.TOKENIZER] = np.frombuffer(self.preparation.tokenizer, np.uint8)
        if self.learned is not None:
            stored[HASHES] = self.learned.hashes
        return model_file.encode(stored, about, layers, digest)

    def save(self, path: str | Path, dtype: str | None = None) -> None:
        """Write the model to a safetensors file.

        Parameters
        ----------
        path : str or Path
            The file. An existing file is replaced once the new one is complete.
        dtype : str, optional
            As for `to_bytes`.

        Raises
        ------
        OutputError
            If the file cannot be written. An existing file is then unchanged.

        """
        write_file(path, self.to_bytes(dtype))

    @classmethod
    def from_bytes(cls, data: bytes, name: str = "model") -> Model:
        """Decode a safetensors file.

        Parameters
        ----------
        data : bytes
            The content of the file.
        name : str
            The name of the model, also in error messages.

        Returns
        -------
        Model
            The model, with its tensors as stored.

        Raises
        ------
        ModelError
            If the file is damaged, or its model needs another version of Broadsheet.

        """
        # Read the file, and take the tensors of each part.
        tensors, about, record = model_file.decode(data, name)
        alphabet, card = _alphabet(about.alphabet, name), about.card
        branch = model_file.branch_of(about, tensors, name)
        encoder = model_file.encoder_of(about, tensors, name)
        preparation = None
        if about.preparation is not None:
            from .preparation import of_file  # imported late, since PyArrow takes time to load

            preparation = of_file(about.preparation, tensors.pop(model_file.TOKENIZER, np.empty(0)).tobytes(), name)
        learned = None if about.learned is None else LearnedRows.of_file(about.learned, tensors, name)
        temperature = 1.0 if about.temperature is None else about.temperature
        # Make the model, which checks its parts, and compare it with the checksum.
        model = cls(
            alphabet, about.classes, about.length, tensors, card, name, about.frame, about.scales, temperature, branch,
            about.thresholds, about.cascade, about.levels, about.heads, about.by_class, preparation, encoder,
            learned,
        )  # fmt: skip
        if record.is_damaged(model.digest):
            raise ModelError(f"{name}: the file is damaged, its content is not what was written: copy it again")
        return model


def _about_levels(levels: Levels) -> list[Any]:
    """Return what the digest covers of the levels.

    It leaves out `is_limited` where true, the default: digests of such models are older than that choice.
    """
    about = [levels.low, levels.step, levels.spread]
    return about if levels.is_limited else [*about, "not limited"]


_MAPPED = b"mapped "


def carried(model: Model) -> bytes:
    """Serialize a model for other processes of this machine.

    The bytes are a model file, or the path of a file that the other processes load or map by themselves, if the table
    of the model's n-grams is mapped from a file, or the model has an encoder and comes from a file.
    """
    table, file = None if model.ngrams is None else model.ngrams.table, Path(model.name)
    path = str(table.filename) if isinstance(table, np.memmap) else None
    if model.encoder is not None and file.suffix == ".safetensors" and file.is_file():
        path = str(file.absolute())
    if path and replace(load_model(path), preparation=model.preparation).digest == model.digest:
        return _MAPPED + msgspec.json.encode((path, model.digest, model.preparation))
    return model.to_bytes()


def taken(data: bytes) -> Model:
    """Return the model that `carried` serialized. Raises ModelError if its file has changed since."""
    if not data.startswith(_MAPPED):
        return Model.from_bytes(data)
    path, digest, about = msgspec.json.decode(data.removeprefix(_MAPPED))
    model = load_model(path)
    if about is not None:
        from .preparation import Preparation  # imported late, since PyArrow takes time to load

        model = replace(model, preparation=msgspec.convert(about, Preparation))
    if model.digest != digest:
        raise ModelError(f"{path} was changed while processes were loading it: leave it as it is, and start again")
    return model


def shipped_file(name: str) -> Traversable:
    """Return the file of a shipped model.

    Raises
    ------
    ModelError
        If the package broadsheet-weights, which contains the weights, is not installed.

    """
    try:
        return resources.files("broadsheet_weights").joinpath(SHIPPED[name].file)
    except ModuleNotFoundError as error:
        raise ModelError(
            f"the weights of {name!r} are in the package broadsheet-weights, which is not installed: install it "
            "(from a clone: pip install ./broadsheet_weights), or give --model PATH"
        ) from error


def load_model(source: str | Path | Model = "ag-news") -> Model:
    """Load a model.

    Parameters
    ----------
    source : str, Path or Model
        One of these:

        - the name of a shipped model, "ag-news"
        - a file: safetensors, fastText's ``.bin`` or ``.ftz``, or a ``params.bin``
        - a folder of an encoder with a head, as transformers saves it
        - a repository of the Hugging Face Hub, ``hf://user/name`` or ``hf://user/name@revision``, with a
          ``model.safetensors`` or such an encoder, which is downloaded and cached
        - a `Model`, which is returned unchanged

        The alphabet, classes and frame of a ``params.bin`` are in ``params.bin.json``, the file next to it that
        `broadsheet convert` writes. Without that file, the model has the published alphabet, classes called "0", "1"
        and so on, and the dense frame.

    Returns
    -------
    Model
        The model, checked.

    Raises
    ------
    ModelError
        If there is no such model, or its file is damaged.

    Examples
    --------
    >>> broadsheet.load_model("ag-news").classes
    ('World', 'Sports', 'Business', 'Sci/Tech')

    """
    if isinstance(source, Model):
        return source
    # Load a shipped model.
    if str(source) in SHIPPED:
        shipped = shipped_file(str(source))
        if not shipped.is_file():
            raise ModelError(
                f"the installed broadsheet-weights has no weights for {source!r}: upgrade it, or give --model PATH"
            )
        model = Model.from_bytes(shipped.read_bytes(), str(source))
        if model.digest != SHIPPED[str(source)].digest:
            raise ModelError(f"{shipped}: the file is damaged: install broadsheet-weights again")
        return model
    # Fetch a repository, and read a folder.
    path, name = Path(source), str(source)
    if name.startswith(model_file.HUB):
        path, name = model_file.fetch_from_hub(name, encoder_file.FILES)
    if encoder_file.is_folder(path):
        return _of_encoder(path, name)
    # Read a file: fastText's, safetensors, or a params.bin with its sidecar.
    try:
        if fasttext_file.is_fasttext(path):
            return _of_fasttext(path, name)
        data = model_file.read_model_file(path)
    except (OSError, ValueError) as error:
        known = ", ".join(SHIPPED)
        raise ModelError(f"no model {str(source)!r}: neither a shipped one ({known}) nor a readable file") from error
    if path.suffix != ".bin":
        return Model.from_bytes(data, name)
    sidecar = model_file.read_sidecar(path, data)
    if sidecar is None:
        return from_params(data, name=str(path))
    return from_params(data, sidecar.classes, sidecar.alphabet, str(path), sidecar.card, sidecar.frame)


def load_encoder(source: str | os.PathLike[str]) -> Encoder | TorchEncoder:
    """Load the encoder of a folder, a repository or a model file, to compute vectors of texts.

    The folder or repository may have a head. The encoder leaves out its last product, which gives the classes' logits,
    and computes vectors of length one.

    Raises ModelError if there is no encoder, or this machine cannot compute it.
    """
    path, name = Path(source), str(source)
    if name.startswith(model_file.HUB):
        path, name = model_file.fetch_from_hub(name, encoder_file.FILES)
    encoder = encoder_folder.read(path, name)[0].encoder if path.is_dir() else load_model(path).encoder
    if encoder is None:
        raise ModelError(f"{name} has no encoder: name a folder, a repository of the Hub, or a model that has one")
    return encoder.as_vectors()


def _of_encoder(path: Path, name: str) -> Model:
    """Read the model in a folder that transformers saved. Raises ModelError if it has no head."""
    (encoder, classes, bias, kind, levels), of_card = encoder_folder.read(path, name)
    if not classes:
        encoder_file.refuse_setfit(path, name)
        raise ModelError(f"{name} gives vectors and no labels: train a head on them, with --encoder")
    thresholds = (scores.DEFAULT_THRESHOLD,) * len(classes) if kind == "several" else None
    card = {"origin": f"converted from {name}", **of_card}
    of_head = {"thresholds": thresholds, "levels": levels, "encoder": encoder}
    return Model(ALPHABET, classes, WHOLE, {BIAS: bias}, card, name, "text", **of_head)  # type: ignore[arg-type]


def _of_fasttext(path: Path, name: str) -> Model:
    """Read a model file of fastText."""
    classes, branch, card = fasttext_file.read(path, name)
    thresholds = (scores.DEFAULT_THRESHOLD,) * len(classes) if branch.kinds.loss == "one-vs-all" else None
    tensors = {BIAS: np.zeros(len(classes), np.float32)}
    whole = branch.kinds.reads
    return Model(ALPHABET, classes, whole, tensors, card, name, "text", ngrams=branch, thresholds=thresholds)


def from_params(
    data: bytes,
    classes: Sequence[str] | None = None,
    alphabet: str = PUBLISHED,
    name: str = "params.bin",
    card: Mapping[str, Any] | None = None,
    frame: Frame = "dense",
) -> Model:
    """Make a model from the parent program's parameter file: tensors as flat little-endian fp32, in layer table order.

    The number of classes follows from the size of the file. Raises ModelError if no number of classes has this size.

    Parameters
    ----------
    data : bytes
        The content of the file.
    classes : sequence of str, optional
        The names of the classes; by default "0", "1" and so on.
    alphabet : str
        The symbols that the model reads.
    name : str
        The name of the model, also in messages.
    card : mapping, optional
        The content of the model's card, to which the origin is added.
    frame : Frame
        How the model treats positions after the end of a text, as in `Model.frame`.

    """
    # Find the number of classes from the size.
    symbols = _alphabet(alphabet, name)
    least = parameter_count(len(alphabet), CLASSES[0])
    of_class = HIDDEN + 1
    values, rest = divmod(len(data), 4)
    count, left = divmod(values - least, of_class)
    count += CLASSES[0]
    if rest or left or not CLASSES[0] <= count <= CLASSES[1]:
        four = 4 * parameter_count(len(alphabet), 4)
        raise ModelError(f"{name}: {len(data):,} bytes is not a parameter file (with 4 classes it has {four:,})")
    names = tuple(classes) if classes else tuple(str(i) for i in range(count))
    if len(names) != count:
        raise ModelError(f"{name} has {count} classes, {len(names)} names were given")
    # Cut the file into tensors.
    flat = np.frombuffer(data, "<f4")
    tensors: dict[str, NDArray[Any]] = {}
    at = 0
    for layer in layer_table(len(alphabet), PUBLISHED_LENGTH, count):
        for tensor, shape in layer.shapes.items():
            size = int(np.prod(shape))
            tensors[tensor] = flat[at : at + size].reshape(shape)
            at += size
    about = {**(card or {}), "origin": "converted from params.bin"}
    return Model(symbols, names, PUBLISHED_LENGTH, tensors, about, name, frame)


def _alphabet(symbols: str, name: str) -> Alphabet:
    """Return the alphabet of a model file. Raises ModelError where `Alphabet` raises ValueError."""
    try:
        return Alphabet(symbols)
    except ValueError as error:
        raise ModelError(f"{name}: {error}") from error
