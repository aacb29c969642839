"""A classifier that keeps a model loaded and labels texts as they come."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, overload

import numpy as np
from numpy.typing import NDArray

from .engine.base import Engine, Predictions, Texts
from .engine.on_gpu import texts_on_gpu
from .engine.open import open_engine
from .errors import ModelError, SourceError, UsageError
from .model.charcnn import Model
from .model.scores import assigned
from .model.several import load_one
from .source.rows.cutting import Cutting
from .source.rows.limits import CHUNK_ROWS, LIMITS

_ONE_TEXT = Texts.of([b"x"])


class Prediction(NamedTuple):
    """The label that a classifier gives to one text.

    Attributes
    ----------
    label : str
        The most probable class.
    score : float
        Its probability.

    Examples
    --------
    >>> with broadsheet.load("ag-news") as classifier:
    ...     label, score = classifier("Stocks fell on Monday as oil rose.")
    >>> label, score > 0.5
    ('Business', True)

    """

    label: str
    score: float


class LabelSet(NamedTuple):
    """The labels that a model with several labels gives to one text.

    Attributes
    ----------
    labels : tuple of str
        The classes whose score reaches their threshold, with the best first. There may be none.
    scores : tuple of float
        Their probabilities.

    Examples
    --------
    >>> labels, scores = classifier.label_sets(["Stocks fell on Monday as oil rose."])[0]

    """

    labels: tuple[str, ...]
    scores: tuple[float, ...]


class Classifier:
    """A loaded model, which labels texts until it is closed. Create it with `load`.

    Any number of threads may use it at the same time; their texts are computed one call after another. A score has the
    same bits as in a job on the same device, whatever else is in the list. The classifier is a context manager, which
    closes it.

    Texts may already be on a GPU: as an array or batch with Arrow's C device interface (the column "text" of a batch),
    a cudf Series, or `broadsheet.pipeline.engine.base.Texts` of CuPy arrays. They are labelled there, and only their
    offsets and nulls are copied to the host. Bytes that are not UTF-8 count as unknown characters.

    A pickled classifier is the model's name or path and the options that `load` was given. Whoever unpickles it loads
    that model again, and gets an error if the model is gone or is a different one.

    Parameters
    ----------
    engine : Engine
        The engine, with its model; `load` opens it.
    given : tuple
        The model, device, precision, kernels and network, with which `load` can load it again.

    Attributes
    ----------
    classes : tuple of str
        The names of the classes, in the order of the columns of `predict_proba`.
    backend : Backend
        The device, kernels, architecture and precision, which decide the bits of a score.

    Examples
    --------
    >>> with broadsheet.load("ag-news") as classifier:
    ...     classifier("Stocks fell on Monday as oil rose.").label
    'Business'

    """

    def __init__(self, engine: Engine, given: tuple[str | Path | Model, str, str, str, str]) -> None:
        self.classes = tuple(engine.model.classes)
        self.backend = engine.backend
        self._engine, self._given = engine, given
        # The engine takes one call at a time, and Ctrl-C, which the main thread gets, must not end one in the middle.
        self._thread = ThreadPoolExecutor(1, "broadsheet-classifier")
        self._submitting = threading.Lock()
        self._process = os.getpid()
        self._close = weakref.finalize(self, _close, engine, self._thread, self._process)

    @overload
    def __call__(self, text: str) -> Prediction: ...  # type: ignore[overload-overlap]  # a string yields strings

    @overload
    def __call__(self, text: Iterable[str]) -> list[Prediction]: ...

    def __call__(self, text: str | Iterable[str]) -> Prediction | list[Prediction]:
        """Label one text or several texts.

        Parameters
        ----------
        text : str or iterable of str
            The text or texts.

        Returns
        -------
        Prediction or list of Prediction
            The most probable class and its probability; for an iterable, a list in the same order.

        Raises
        ------
        SourceError, UsageError
            As in `predict`.

        """
        self._refuse_several()
        pieces = self._predict([text] if isinstance(text, str) else text)
        best = [
            Prediction(self.classes[label], score)
            for piece in pieces
            for label, score in zip(piece.labels[:, 0].tolist(), piece.scores[:, 0].tolist(), strict=True)
        ]
        return best[0] if isinstance(text, str) else best

    def predict(self, texts: Iterable[str]) -> list[str]:
        """Label texts.

        Parameters
        ----------
        texts : iterable of str
            A list, or anything else that yields strings, for example a column of a DataFrame.

        Returns
        -------
        list of str
            The most probable class of each text, in order.

        Raises
        ------
        SourceError
            For a text that a job would quarantine: a null, one that is not valid Unicode or longer than 16 MiB, or one
            on which the model overflows. The message names its position, from 0. No text of the list gets a label then.
        UsageError
            For something that is not an iterable of strings, or after `close`.

        """
        self._refuse_several()
        return [self.classes[label] for piece in self._predict(texts) for label in piece.labels[:, 0].tolist()]

    def label_sets(self, texts: Iterable[str]) -> list[LabelSet]:
        """Label texts with a model that gives several labels.

        Parameters
        ----------
        texts : iterable of str
            As in `predict`.

        Returns
        -------
        list of LabelSet
            The labels and scores of each text, in order.

        Raises
        ------
        UsageError
            For a model that gives one label, and as in `predict`.
        SourceError
            As in `predict`.

        """
        thresholds = self._engine.model.thresholds
        if thresholds is None:
            raise UsageError(f"{self._engine.model.name} gives each text one label: use predict()")
        return [self._label_set(scores, thresholds) for scores in self.predict_proba(texts)]

    def _label_set(self, scores: NDArray[np.float32], thresholds: tuple[float, ...]) -> LabelSet:
        given = np.flatnonzero(assigned(scores, thresholds))
        given = given[np.argsort(-scores[given], kind="stable")]
        return LabelSet(tuple(self.classes[i] for i in given), tuple(scores[given].tolist()))

    def _refuse_several(self) -> None:
        if self._engine.model.is_multi_label and len(self.classes) > 1:
            raise UsageError(f"{self._engine.model.name} gives a text several labels: use label_sets()")

    def predict_proba(self, texts: Iterable[str]) -> NDArray[np.float32]:
        """Compute the probability of every class.

        Parameters
        ----------
        texts : iterable of str
            As in `predict`.

        Returns
        -------
        float32 [N, classes]
            One row for each text, with a column for each of `classes`.

        Raises
        ------
        SourceError, UsageError
            As in `predict`.

        """
        none = np.empty((0, len(self.classes)), np.float32)
        scores = [piece.all_scores for piece in self._predict(texts, all_scores=True) if piece.all_scores is not None]
        return np.concatenate([none, *scores])

    def close(self) -> None:
        """Release the threads and the memory of the model, after the calls of other threads. May be called again."""
        with self._submitting:
            self._close()
        if os.getpid() == self._process:
            self._thread.shutdown()

    def __enter__(self) -> Classifier:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return _load_again, (self._engine.model.digest, *self._given)

    def __repr__(self) -> str:
        return f"<Classifier {self._engine.model.name} on {self.backend}{'' if self._close.alive else ', closed'}>"

    def _predict(self, texts: Any, all_scores: bool = False) -> list[Predictions]:
        if os.getpid() != self._process:
            raise UsageError("this classifier belongs to the process that loaded it: load one in each process")
        return [self._of_piece(first, piece, all_scores) for first, piece in self._texts(texts)]

    def _texts(self, texts: Any) -> Iterator[tuple[int, Texts]]:
        """Yield the texts in pieces, each with the number of its first text. Texts on a GPU stay there."""
        given = texts if isinstance(texts, Texts) else self._on_gpu(texts)
        rows = CHUNK_ROWS[self.backend.device]
        if given is None:
            articles = _encoded(texts)
            sizes = np.array([*map(len, articles)], np.int64)
            for first, last, _ in Cutting(rows, LIMITS.chunk_bytes).cut(sizes):  # as a job cuts chunks
                yield first, Texts.of(articles[first:last])
            return
        if not isinstance(given.data, np.ndarray) and self.backend.device == "cpu":
            raise UsageError(
                "the texts are on a GPU, and the classifier computes on the CPU: load it with device='cuda'"
            )
        offsets = given.offsets if isinstance(given.offsets, np.ndarray) else given.offsets.get()  # CuPy has `get`
        for first in range(0, len(given), rows):
            yield first, replace(given, offsets=offsets[first : first + rows + 1].astype(np.int64))

    def _on_gpu(self, texts: Any) -> Texts | None:
        """Return texts that are on a GPU. Raises SourceError for a null among them."""
        on_gpu = texts_on_gpu(texts)
        if on_gpu is not None and on_gpu.null.any():
            raise SourceError(f"text {int(np.argmax(on_gpu.null))}: the text is null")
        return None if on_gpu is None else on_gpu.texts

    def _of_piece(self, first: int, texts: Texts, all_scores: bool) -> Predictions:
        """Return the predictions of texts, the first of which is number `first`. Raises SourceError for an overflow."""
        with self._submitting:
            if not self._close.alive:
                raise UsageError("this classifier is closed: load another with broadsheet.load()")
            computed = self._thread.submit(self._engine.classify, texts, all_scores=all_scores)
        predictions = computed.result()
        if predictions.overflowed.any():
            precision = self.backend.precision
            remedy = "" if precision == "fp32" else ". Load the model with precision='fp32'"
            position = first + int(np.argmax(predictions.overflowed))
            raise SourceError(f"text {position}: the model overflows in {precision} on this text{remedy}")
        return predictions


def load(
    model: str | Path | Model = "ag-news",
    *,
    device: str = "auto",
    precision: str = "auto",
    kernels: str = "auto",
    network: str = "uncertain",
) -> Classifier:
    """Load a model to label texts as they come. For many texts or for files, use `classify`.

    Parameters
    ----------
    model : str, path or Model
        A shipped model's name, a model file, or a loaded `Model`.
    device : str
        "auto" (a GPU if one works, else the CPU), "cpu" or "cuda".
    precision : str
        "auto", "fp32", "fp16", "bf16" or "int8". A CPU computes in fp32, or, more slowly, in int8. int8 needs a model
        with activation scales (`quantise`).
    kernels : str
        "auto", or a generation of CUDA kernels: "simt", "sm75", "sm80" or "sm90".
    network : str
        The texts for which a model with n-grams asks its network: "uncertain" (those whose label its n-grams are not
        sure of, if the model has a margin for that), "all", or "none".

    Returns
    -------
    Classifier
        A classifier that is ready: the kernels are loaded, and their memory is allocated.

    Raises
    ------
    ModelError
        For a model that does not exist or is damaged.
    UsageError
        If the device, the precision or the kernels are not available.
    BroadsheetError
        If the GPU has no room for the model.

    Examples
    --------
    >>> classifier = broadsheet.load("ag-news")
    >>> classifier.predict(["Stocks fell on Monday as oil rose.", "The home team won."])
    ['Business', 'Sports']
    >>> classifier.close()

    """
    engine = open_engine(load_one(model).asking(network), device, precision, kernels=kernels)
    try:
        engine.classify(_ONE_TEXT)
    except BaseException:
        engine.close()
        raise
    if not isinstance(model, Model) and os.path.exists(model):
        model = os.path.abspath(model)  # another process may have a different working folder
    return Classifier(engine, (model, device, precision, kernels, network))


def _load_again(
    digest: str, model: str | Path | Model, device: str, precision: str, kernels: str, network: str
) -> Classifier:
    """Load a pickled classifier. Raises ModelError if the model is a different one than when it was pickled.

    Parameters
    ----------
    digest : str
        The digest of its model.
    model, device, precision, kernels, network
        The arguments of `load`.

    """
    classifier = load(model, device=device, precision=precision, kernels=kernels, network=network)
    if classifier._engine.model.digest != digest:
        classifier.close()
        raise ModelError(f"{model} is another model than the pickled classifier had: load it anew")
    return classifier


def _close(engine: Engine, thread: ThreadPoolExecutor, process: int) -> None:
    """Close an engine after its calls have ended. Do nothing in a forked process, which lacks the engine's threads."""
    if os.getpid() == process:
        try:
            thread.submit(engine.close)
        except RuntimeError:  # Python exits, and has ended its threads
            engine.close()
        thread.shutdown(wait=False)


def _encoded(texts: Any) -> list[bytes]:
    """Return texts in UTF-8. Raises UsageError if it is no iterable of strings, SourceError for a bad text."""
    if isinstance(texts, str | bytes | Mapping) or hasattr(texts, "columns") or not isinstance(texts, Iterable):
        raise UsageError(f"a {type(texts).__name__} is not a list of texts: give a list of strings, or one column")
    texts = texts.to_pylist() if hasattr(texts, "to_pylist") else texts  # an Arrow array of any layout
    return [_utf8(number, text) for number, text in enumerate(texts)]


def _utf8(number: int, text: object) -> bytes:
    if text is None or (isinstance(text, float) and text != text):  # pandas has NaN for a null
        raise SourceError(f"text {number}: the text is null")
    if not isinstance(text, str):
        raise UsageError(f"text {number} is a {type(text).__name__}, not a string")
    try:
        encoded = text.encode()
    except UnicodeEncodeError as error:
        code = ord(text[error.start])
        raise SourceError(
            f"text {number}: not valid Unicode: character {error.start} of it is half a surrogate pair, U+{code:04X}"
        ) from error
    if len(encoded) > LIMITS.field_bytes:
        raise SourceError(f"text {number}: the text is longer than {LIMITS.field_bytes >> 20} MiB")
    return encoded
