"""A model: weights with their alphabet, classes and settings; how it becomes a model file, and is made from one.

`loading` finds the files of models. `params_file` reads the files of the parent program, the course project with MPI
and CUDA from which Broadsheet descends (README.md).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from ..errors import ModelError, UsageError
from ..storage.disk import write_file
from . import model_file, scores
from .alphabet import Alphabet
from .cascade import ASKS, Cascade
from .encoder import Encoder
from .fasttext import FastText
from .layers import BIAS, FRAMES, WHOLE, Frame, Layer, check_tensors, layer_table
from .learned import TENSOR as HASHES
from .learned import LearnedRows
from .model_file import COLUMNS_CARD, MEANT_FOR, ActivationScales
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
    card: Mapping[str, Any] = field(default=None, repr=False)  # type: ignore[arg-type]  # becomes {}
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
        alphabet, card = model_file.alphabet_of(about.alphabet, name), about.card
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
