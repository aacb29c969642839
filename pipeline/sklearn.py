"""A model as a scikit-learn estimator (the extra `sklearn`)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, NoReturn

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_consistent_length, check_is_fitted

from .classifier import Classifier, load
from .model.charcnn import Model
from .source.rows.labels import labels_of
from .train import train
from .train.recipe import WITH_SPACE

_MODEL, _CLASSIFIER = "model_", "_classifier"


class TextClassifier(ClassifierMixin, BaseEstimator):
    """A text classifier that `fit` trains as `train` does, and that the engines of this package compute.

    PyTorch trains the character network; n-grams alone need no PyTorch.

    `X` is one-dimensional: a list, array, or column of strings. The estimator has no `n_features_in_`.

    Parameters
    ----------
    epochs, batch_size, learning_rate : optional
        As in `broadsheet.pipeline.train.Recipe`. Default: `broadsheet.pipeline.train.train` chooses by the number of
        rows.
    settings : mapping of str to number, optional
        Other settings of the recipe, for example ``{"dropout": 0.5}``.
    ngrams : int, optional
        The number of buckets for n-grams beside the network, a power of two; 0 for none. Without a GPU and without a
        setting of the recipe, only n-grams are fitted, unless this is 0, as in `broadsheet.pipeline.train.train`.
    vectors : str, optional
        Pretrained word vectors for the n-grams, as in `broadsheet.pipeline.train.train`.
    balanced : bool
        Whether every class has the same weight, however many rows it has.
    hold_out_share : float, optional
        The share of each class that is kept out of training and that calibrates the scores. Default: 0.05, or none if
        only n-grams are fitted.
    length : int
        The number of characters of each text that the model reads, from 64 to 4,096.
    alphabet : str
        The symbols that the model reads. Default: the published alphabet with a space.
    frame : str
        "text" or "dense", as in `broadsheet.pipeline.train.train`.
    random_state : int, RandomState or None
        The seed of the initial weights, dropout and augmentation.
    device : str
        "auto", "cpu" or "cuda", for training and for predictions.

    Attributes
    ----------
    classes_ : ndarray [classes]
        The labels, sorted.
    model_ : Model
        The trained model; ``model_.save`` writes it to a file that every command accepts.

    Examples
    --------
    >>> from broadsheet.sklearn import TextClassifier
    >>> classifier = TextClassifier(length=256, epochs=20, random_state=0).fit(texts, topics)
    >>> classifier.predict(["Stocks fell on Monday."])
    array(['business'], dtype='<U8')

    """

    def __init__(
        self,
        *,
        epochs: int | None = None,
        batch_size: int | None = None,
        learning_rate: float | None = None,
        settings: Mapping[str, float] | None = None,
        ngrams: int | None = None,
        vectors: str | None = "auto",
        balanced: bool = False,
        hold_out_share: float | None = None,
        length: int = 1014,
        alphabet: str = WITH_SPACE,
        frame: str = "text",
        random_state: Any = None,
        device: str = "auto",
    ) -> None:
        self.epochs = epochs
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.settings = settings
        self.ngrams = ngrams
        self.vectors = vectors
        self.balanced = balanced
        self.hold_out_share = hold_out_share
        self.length = length
        self.alphabet = alphabet
        self.frame = frame
        self.random_state = random_state
        self.device = device

    def fit(self, X: Iterable[str], y: Iterable[Any]) -> TextClassifier:  # noqa: N803 - scikit-learn calls it X
        """Train on N texts.

        Parameters
        ----------
        X : iterable of str [N]
            The texts.
        y : iterable [N]
            Their labels, of any kind that can be sorted.

        Returns
        -------
        TextClassifier
            This estimator.

        Raises
        ------
        ValueError
            For a text that is not a string, a null label, two labels that are written alike, or lengths that differ.
        UsageError, BroadsheetError
            As in `broadsheet.pipeline.train.train`.

        """
        texts, labels = _texts(X), _labels(y)
        check_consistent_length(texts, labels)
        classes, codes = np.unique(labels, return_inverse=True)
        names = labels_of(pa.array(classes.tolist())).to_pylist()
        if None in names:
            raise ValueError("y holds a missing label")
        twice, times = Counter(names).most_common(1)[0]
        if times > 1:
            raise ValueError(f"two labels are written {twice!r}: give them different names")
        given = {"epochs": self.epochs, "batch_size": self.batch_size, "learning_rate": self.learning_rate}
        chosen = {name: value for name, value in given.items() if value is not None} | dict(self.settings or {})
        trained = train(
            pa.table({"text": texts, "label": pa.array(names, pa.string()).take(pa.array(codes))}),
            text_column="text",
            label_column="label",
            classes=names,
            alphabet=self.alphabet,
            length=self.length,
            frame=self.frame,
            settings=[f"{name}={value}" for name, value in chosen.items()],
            ngrams=self.ngrams,
            vectors=self.vectors,
            balanced=self.balanced,
            hold_out_share=self.hold_out_share,
            seed=int(check_random_state(self.random_state).randint(1 << 31)),
            device=self.device,
        )
        self._forget()
        self.classes_, self.model_ = classes, trained.model
        return self

    @property
    def partial_fit(self) -> NoReturn:
        """Raise an error: the learning rate of a run is planned over all its rows and epochs."""
        raise AttributeError(
            "TextClassifier has no partial_fit: its learning rate rises and falls once over a whole run, and the model "
            "is an average of that run's weights. Call fit with all rows"
        )

    def predict(self, X: Iterable[str]) -> NDArray[Any]:  # noqa: N803
        """Label N texts.

        Parameters
        ----------
        X : iterable of str [N]
            The texts.

        Returns
        -------
        ndarray [N]
            The most probable of `classes_` for each text.

        Raises
        ------
        ValueError
            For a text that is not a string.

        """
        best = self.predict_proba(X).argmax(axis=1)
        return np.asarray(self.classes_[best])

    def predict_proba(self, X: Iterable[str]) -> NDArray[np.float32]:  # noqa: N803
        """Compute the probability of every class.

        Parameters
        ----------
        X : iterable of str [N]
            The texts.

        Returns
        -------
        float32 [N, classes]
            One column for each of `classes_`.

        Raises
        ------
        ValueError
            For a text that is not a string.

        """
        check_is_fitted(self, _MODEL)
        return self._opened().predict_proba(_texts(X).to_pylist())

    def _opened(self) -> Classifier:
        """Return the model, which is loaded at the first prediction and kept."""
        if _CLASSIFIER not in vars(self):
            self._classifier = load(self.model_, device=self.device)
        return self._classifier

    def _forget(self) -> None:
        if _CLASSIFIER in vars(self):
            self._classifier.close()
            del self._classifier

    def __getstate__(self) -> dict[str, Any]:
        """Return the state with the bytes of the model file instead of the model."""
        state = {name: value for name, value in super().__getstate__().items() if name != _CLASSIFIER}
        if _MODEL in state:
            state[_MODEL] = state[_MODEL].to_bytes()
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        if _MODEL in state:
            state = {**state, _MODEL: Model.from_bytes(state[_MODEL])}
        super().__setstate__(state)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array = False
        tags.input_tags.one_d_array = tags.input_tags.string = True
        return tags


def _texts(given: Iterable[Any]) -> pa.Array:
    """Return texts as an Arrow array. Raises ValueError if they are not one-dimensional, or not strings."""
    if isinstance(given, str) or np.ndim(given) != 1:  # type: ignore[arg-type]
        raise ValueError("X must be one-dimensional: a list, array or column of strings")
    try:
        texts = pa.array(list(given), pa.large_string())
    except (pa.ArrowException, TypeError, UnicodeEncodeError) as error:
        raise ValueError(f"X holds something that is no text: {error}") from error
    if texts.null_count:
        raise ValueError(f"X holds no text at position {next(i for i, t in enumerate(texts) if not t.is_valid)}")
    return texts


def _labels(given: Iterable[Any]) -> NDArray[Any]:
    labels = np.asarray(given)
    if labels.ndim != 1:
        raise ValueError("y must be one-dimensional: a label for each text")
    if any(label is None or label != label for label in labels):
        raise ValueError("y holds a missing label")
    return labels
