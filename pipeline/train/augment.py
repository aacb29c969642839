"""Small random changes of encoded articles, new in every epoch, that leave the label as it is."""

from __future__ import annotations

import torch
from torch import Tensor

from ..model.alphabet import Alphabet
from .recipe import Recipe


def augment(ids: Tensor, alphabet: Alphabet, recipe: Recipe) -> Tensor:
    """Articles uint8 [N, length] with words, characters and spans changed, then moved; `ids` is not modified.

    Erased characters become unknown ones, which are zero columns like the padding. A text ends where it ended, unless
    it is moved. Draws from PyTorch's global generator of the device.
    """
    if recipe.dropped_words:
        ids = _drop_words(ids, alphabet, recipe.dropped_words)
    position = torch.arange(ids.shape[1], device=ids.device)
    text_length = ((ids < len(alphabet)) * (position + 1)).amax(1, keepdim=True)
    if recipe.random_characters:
        ids = _replace_characters(ids, alphabet, recipe.random_characters)
    for _ in range(recipe.erased_spans):
        first = (_uniform(ids) * text_length).long()
        end = first + 1 + (_uniform(ids) * recipe.span_length).long()
        erased = (position >= first) & (position < end) & (ids != alphabet.padding)
        ids = torch.where(erased, alphabet.unknown, ids)
    if recipe.shift or recipe.cut:
        move = (_uniform(ids) * (recipe.shift + 1)).long() - (_uniform(ids) * (recipe.cut + 1)).long()
        origin = position - move
        inside = (origin >= 0) & (origin < ids.shape[1])
        ids = torch.where(inside, ids.gather(1, origin.clamp(0, ids.shape[1] - 1)), alphabet.padding)
    return ids


def _uniform(ids: Tensor, columns: int = 1) -> Tensor:
    return torch.rand(len(ids), columns, device=ids.device)


def _drop_words(ids: Tensor, alphabet: Alphabet, share: float) -> Tensor:
    """Erase words, each article's share drawn between zero and twice `share`."""
    space = alphabet.symbols.find(" ")
    between = ids == (space if space >= 0 else alphabet.unknown)
    word = between.cumsum(1)
    dropped = _uniform(ids, ids.shape[1] + 1) < 2 * share * _uniform(ids)
    erase = dropped.gather(1, word) & (ids < len(alphabet)) & ~between
    return torch.where(erase, alphabet.unknown, ids)


def _replace_characters(ids: Tensor, alphabet: Alphabet, share: float) -> Tensor:
    chosen = (_uniform(ids, ids.shape[1]) < share) & (ids < len(alphabet))
    other = torch.randint(len(alphabet), ids.shape, dtype=ids.dtype, device=ids.device)
    return torch.where(chosen, other, ids)
