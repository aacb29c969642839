"""A loss that does not move is told early, with what helps."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .progress import Cost, Epoch, Note, Step, Tell
from .recipe import Recipe

_SHARE = 0.1  # of the epochs, after which it is told
_LEAST = 3  # epochs
_MOVED = 0.02  # of the loss of guessing


class Stuck:
    """Tells what it is told, and once that the loss is still that of guessing by how frequent the classes are."""

    def __init__(self, tell: Tell, labels: NDArray[np.int64], classes: int, recipe: Recipe) -> None:
        self._tell, self._recipe, self._told = tell, recipe, False
        self._after = max(_LEAST, round(_SHARE * recipe.epochs))
        shares = np.bincount(labels, minlength=classes) / len(labels)
        shares = (1 - recipe.label_smoothing) * shares + recipe.label_smoothing / classes
        self.guessing = float(-(shares * np.log(np.maximum(shares, np.finfo(float).tiny))).sum())

    def __call__(self, what: Cost | Step | Epoch | Note) -> None:
        """What a run tells."""
        self._tell(what)
        if self._told or not isinstance(what, Epoch) or what.number < self._after:
            return
        if what.loss > (1 - _MOVED) * self.guessing:
            self._told = True
            rate, so_far = self._recipe.learning_rate, f"after {what.number} of {self._recipe.epochs} epochs"
            self._tell(
                Note(
                    f"warning: {so_far} the loss is {what.loss:.3f}, that of guessing {self.guessing:.3f}: nothing "
                    f"is learnt yet. Try a learning rate of {rate / 10:g}, no dropout (dropout=0, input_dropout=0), "
                    "less augmentation (dropped_words=0, random_characters=0, erased_spans=0), or n-grams alone"
                )
            )
