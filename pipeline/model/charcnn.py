"""A model: the network's weights with their alphabet and classes, and where it is loaded from."""

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

    Attributes
    ----------
    alphabet : Alphabet
        The characters that the model reads.
    classes : tuple of str
        Names of the labels, in the order of the last layer's outputs.
    length : int
        Characters of each article that the model reads, from 64 to 4,096; `layers.WHOLE` of a model of fastText's.
    tensors : mapping of str to ndarray
        Weights by PyTorch's names and in its shapes (see `Layer.shapes`), float32 or float16. Of a model of n-grams
        alone only ``fc3.bias``.
    card : mapping
        JSON values about where the weights come from: data, recipe, accuracy.
    name : str
        Name in reports and messages.
    frame : str
        "text" if block 1's output is zero after the end of an article's text, "dense" if it is not.
    scales : ActivationScales, optional
        What `quantise` found, by which the model computes in int8.
    temperature : float
        What `calibrate` found: the logits are divided by it before the softmax, which changes scores and no label. 1
        leaves them as they are.
    ngrams : NGrams or FastText, optional
        A branch beside the network, whose scores are added to its logits; or a model of fastText's, without a network.
    thresholds : tuple of float, optional
        Of a model that gives several labels to a text: each class has a score of its own, the sigmoid of its logit, and
        a text has the label of each class whose score reaches its threshold. None for a model that gives one.
    cascade : Cascade, optional
        What `train` or `calibrate` found, by which the network is asked about some texts only; without, about all.
    levels : Levels, optional
        Of a model that gives each text a number: the score of its label, which is the nearest level.
    heads : tuple of (str, int), optional
        Of a model that gives each text a label for each of several columns: the name of each, and how many of the
        classes, in order, are its own. These are called "column: class".
    by_class : ByClass, optional
        What `calibrate` found with `by_class`: how likely a label is right, from its score, of each class.
    preparation : Preparation, optional
        What is done to a text before the model reads it.
    encoder : Encoder or TorchEncoder, optional
        What computes the scores in place of a network, with ``fc3.bias`` as its last bias. With n-grams and a cascade,
        these have scores of their own, and the encoder is asked about some texts only.
    learned : LearnedRows, optional
        By which rows that the model has learned are recognised. It decides no score, and is not part of the digest.

    Raises
    ------
    ModelError
        For a tensor that is missing, unknown, misshapen or not finite, a class without a name, two of one name, an
        unknown frame, scales, n-grams, thresholds or heads that do not fit, or a temperature out of range.

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
        if self.scales is not None:
            convolutions = [layer.name for layer in self.layers if layer.kind == "conv1d" and not layer.is_lookup]
            self.scales.check(convolutions, self.name)
        if not scores.TEMPERATURES[0] <= self.temperature <= scores.TEMPERATURES[1]:
            least, most = scores.TEMPERATURES
            raise ModelError(f"{self.name}: temperature {self.temperature:g} is outside {least:g} to {most:g}")
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
        """The nine blocks, in order; one of a model that has no network and reads whole texts."""
        return layer_table(len(self.alphabet), self.length, len(self.classes))

    @property
    def reads(self) -> int:
        """Characters at the beginning of an article on which its label depends; only their number is needed of others.

        >>> broadsheet.load_model("ag-news").reads
        1014
        """
        if self.preparation is not None or self.encoder is not None:
            return WHOLE
        return self.length if self.ngrams is None else max(self.length, self.ngrams.kinds.reads)

    @property
    def _has_bias_alone(self) -> bool:
        return (self.ngrams is not None or self.encoder is not None) and set(self.tensors) == {BIAS}

    @property
    def window(self) -> int:
        """Characters of a window of a long text: as many as the network reads, or without one the n-grams."""
        return self.length if self.has_network else self.reads

    @cached_property
    def has_network(self) -> bool:
        """Whether there is a network that counts: files of n-grams alone had one of zeros, before they had none."""
        return not self._has_bias_alone and bool(self.tensors["fc3.weight"].any())

    @property
    def second(self) -> str:
        """What is asked after its n-grams."""
        return "network" if self.encoder is None else "encoder"

    def asking(self, network: str) -> Model:
        """The same model with its network asked about some texts.

        Parameters
        ----------
        network : str
            "all", "none", or "uncertain": by its margin; all where it has none.

        Returns
        -------
        Model
            With a digest of its own.

        Raises
        ------
        UsageError
            For "none", where n-grams alone have no scores.

        """
        if network not in ASKS:
            raise UsageError(f"network {network!r}: choose one of {', '.join(ASKS)}")
        if network != "none" or not (self.has_network or self.encoder):
            if network == "uncertain" or self.cascade is None:
                return self
            return replace(self, cascade=None, ngrams=self.ngrams if self.encoder is None else None)
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
        """Whether a temperature was fitted to its scores. It may be 1."""
        return self.temperature != 1 or scores.CARD in self.card

    @property
    def meant_for(self) -> str | None:
        """The texts that it was trained on, where its card says that."""
        meant_for = self.card.get(MEANT_FOR)
        return None if meant_for is None else str(meant_for)

    @property
    def join(self) -> str:
        """The template that made the texts that it learned, of several columns, where its card has one; else ""."""
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
            With the template in its card; its digest stays the same, since the template decides no text's score.

        """
        before = self.card.get(COLUMNS_CARD)
        kept = {"label": before["label"]} if isinstance(before, Mapping) and "label" in before else {}
        return replace(self, card={**self.card, COLUMNS_CARD: {**kept, "join": template}})

    @property
    def is_multi_label(self) -> bool:
        """Whether it gives each text any number of labels, rather than one."""
        return self.thresholds is not None

    @property
    def link(self) -> int:
        """How scores follow from logits, as in `scores`."""
        if isinstance(self.ngrams, FastText):
            return self.ngrams.link
        return scores.GIVEN if self.levels is not None else scores.SIGMOID if self.is_multi_label else scores.SOFTMAX

    @property
    def parameters(self) -> int:
        """The number of weights: of the network, and in the table of n-grams."""
        of_encoder = 0 if self.encoder is None else self.encoder.parameters
        in_table = 0 if self.ngrams is None else self.ngrams.table.size
        return sum(t.size for t in self.tensors.values()) + in_table + of_encoder

    @property
    def weight_bytes(self) -> int:
        """Bytes of all weights."""
        return sum(tensor.nbytes for tensor in (*self.tensors.values(), *self._beside.values()))

    @property
    def mapped_bytes(self) -> int:
        """Those of them that are in a file which all processes of a machine map."""
        return sum(tensor.nbytes for tensor in self._beside.values() if isinstance(tensor, np.memmap))

    @property
    def dtype(self) -> str:
        """The dtype of the weights, "float32" or "float16"."""
        return str(self.tensors[BIAS].dtype)

    @cached_property
    def digest(self) -> str:
        """sha256 of all that decides a score: alphabet, classes, length, frame, scales, temperature, n-grams,
        thresholds, heads, scores by class, preparation and tensors.
        """
        features: dict[str, Any] = {
            "frame": None if self.frame == "dense" else self.frame,  # digests of dense models are older than the choice
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
        digest = hashlib.sha256(json.dumps(about).encode())
        for name in sorted(stored := {**self.tensors, **self._beside}):
            tensor = np.ascontiguousarray(stored[name])
            digest.update(f"{name} {tensor.dtype.str}".encode())
            digest.update(tensor.data)
        return digest.hexdigest()

    @property
    def _beside(self) -> dict[str, NDArray[Any]]:
        """The tensors of its n-grams and of its encoder."""
        return {name: t for part in (self.ngrams, self.encoder) if part for name, t in part.tensors().items()}

    def to_bytes(self, dtype: str | None = None) -> bytes:
        """Encode the model as a safetensors file.

        Parameters
        ----------
        dtype : str, optional
            "float32" or "float16". Default: that of the tensors.

        Returns
        -------
        bytes
            The file. The same model always gives the same bytes.

        Raises
        ------
        ModelError
            If a weight does not fit `dtype`.

        """
        tensors, digest = {n: np.ascontiguousarray(t, dtype or t.dtype) for n, t in self.tensors.items()}, self.digest
        if dtype is not None:
            for name, tensor in tensors.items():
                if not np.isfinite(tensor).all():
                    raise ModelError(f"tensor {name} does not fit {dtype}")
            digest = replace(self, tensors=tensors).digest
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
            The file, which is replaced if it exists, once the new one is written whole.
        dtype : str, optional
            As for `to_bytes`.

        Raises
        ------
        OutputError
            For a file that cannot be written; one that was there is as it was.

        """
        write_file(path, self.to_bytes(dtype))

    @classmethod
    def from_bytes(cls, data: bytes, name: str = "model") -> Model:
        """Decode a safetensors file.

        Parameters
        ----------
        data : bytes
            The file.
        name : str
            Name of the model, also in error messages.

        Returns
        -------
        Model
            The model, its tensors as stored.

        Raises
        ------
        ModelError
            If the file is damaged, or is not a model of this version.

        """
        tensors, about, record = model_file.decode(data, name)
        alphabet, card = _alphabet(about.alphabet, name), about.card
        branch = model_file.branch_of(about, tensors, name)
        encoder = model_file.encoder_of(about, tensors, name)
        preparation = None
        if about.preparation is not None:
            from .preparation import of_file  # PyArrow takes time to load

            preparation = of_file(about.preparation, tensors.pop(model_file.TOKENIZER, np.empty(0)).tobytes(), name)
        learned = None if about.learned is None else LearnedRows.of_file(about.learned, tensors, name)
        temperature = 1.0 if about.temperature is None else about.temperature
        model = cls(
            alphabet, about.classes, about.length, tensors, card, name, about.frame, about.scales, temperature, branch,
            about.thresholds, about.cascade, about.levels, about.heads, about.by_class, preparation, encoder,
            learned,
        )  # fmt: skip
        if record.is_damaged(model.digest):
            raise ModelError(f"{name}: the file is damaged, its content is not what was written: copy it again")
        return model


def _about_levels(levels: Levels) -> list[Any]:
    """What a digest has of them; digests of models whose numbers are limited are older than the choice."""
    about = [levels.low, levels.step, levels.spread]
    return about if levels.is_limited else [*about, "not limited"]


_MAPPED = b"mapped "


def carried(model: Model) -> bytes:
    """The model for other processes of this machine: as bytes, or where its table is mapped, or an encoder has a file,
    the name of the file.
    """
    table, file = None if model.ngrams is None else model.ngrams.table, Path(model.name)
    path = str(table.filename) if isinstance(table, np.memmap) else None
    if model.encoder is not None and file.suffix == ".safetensors" and file.is_file():
        path = str(file.absolute())
    if path and replace(load_model(path), preparation=model.preparation).digest == model.digest:
        return _MAPPED + msgspec.json.encode((path, model.digest, model.preparation))
    return model.to_bytes()


def taken(data: bytes) -> Model:
    """What `carried` has carried. Raises ModelError where its file is no longer the same."""
    if not data.startswith(_MAPPED):
        return Model.from_bytes(data)
    path, digest, about = msgspec.json.decode(data.removeprefix(_MAPPED))
    model = load_model(path)
    if about is not None:
        from .preparation import Preparation  # PyArrow takes time to load

        model = replace(model, preparation=msgspec.convert(about, Preparation))
    if model.digest != digest:
        raise ModelError(f"{path} was changed while processes were loading it: leave it as it is, and start again")
    return model


def shipped_file(name: str) -> Traversable:
    """The weights of a shipped model.

    Raises
    ------
    ModelError
        If the package broadsheet-weights, which holds them, is not installed.

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
        The name of a shipped model ("ag-news"); or a file: safetensors, fastText's ``.bin`` or ``.ftz``, or a
        ``params.bin``; or a repository of the Hugging Face Hub, ``hf://user/name`` or ``hf://user/name@revision``,
        whose ``model.safetensors`` is downloaded and cached. A ``params.bin`` has its alphabet, classes and frame from
        the file that `broadsheet convert` writes next to it, ``params.bin.json``; without it, the published alphabet,
        classes called "0", "1" and so on, and the dense frame. Or a folder or repository of an encoder with a head, as
        transformers saves it. A `Model` is returned as it is.

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
    path, name = Path(source), str(source)
    if name.startswith(model_file.HUB):
        path, name = model_file.fetch_from_hub(name, encoder_file.FILES)
    if encoder_file.is_folder(path):
        return _of_encoder(path, name)
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
    """The encoder of a folder or repository, with or without a head, or of one of our files: without the last product,
    and with vectors of length one.

    Raises ModelError where there is none, or it cannot be computed here.
    """
    path, name = Path(source), str(source)
    if name.startswith(model_file.HUB):
        path, name = model_file.fetch_from_hub(name, encoder_file.FILES)
    encoder = encoder_folder.read(path, name)[0].encoder if path.is_dir() else load_model(path).encoder
    if encoder is None:
        raise ModelError(f"{name} has no encoder: name a folder, a repository of the Hub, or a model that has one")
    return encoder.as_vectors()


def _of_encoder(path: Path, name: str) -> Model:
    (encoder, classes, bias, kind, levels), of_card = encoder_folder.read(path, name)
    if not classes:
        encoder_file.refuse_setfit(path, name)
        raise ModelError(f"{name} gives vectors and no labels: train a head on them, with --encoder")
    thresholds = (scores.DEFAULT_THRESHOLD,) * len(classes) if kind == "several" else None
    card = {"origin": f"converted from {name}", **of_card}
    of_head = {"thresholds": thresholds, "levels": levels, "encoder": encoder}
    return Model(ALPHABET, classes, WHOLE, {BIAS: bias}, card, name, "text", **of_head)  # type: ignore[arg-type]


def _of_fasttext(path: Path, name: str) -> Model:
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
    """A model from the parent program's parameter file: tensors as flat little-endian fp32, in layer table order.

    The number of classes follows from the size of the file. Raises ModelError where the size fits no number of classes.

    Parameters
    ----------
    data : bytes
        The content of the file.
    classes : sequence of str, optional
        The names of the classes; by default 0, 1, ….
    alphabet : str
        The symbols that the model reads.
    name : str
        The name of the model, also in messages.
    card : mapping, optional
        What the model's card says beside its origin.
    frame : Frame
        Whether what follows a text's end counts.

    """
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
    try:
        return Alphabet(symbols)
    except ValueError as error:
        raise ModelError(f"{name}: {error}") from error
