"""The training loop: AdamW over augmented epochs, and a running average of the weights, which becomes the model."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pipeline.errors import BroadsheetError
from pipeline.model.alphabet import Alphabet
from pipeline.train.augment import augment
from pipeline.train.checkpoint import Checkpoint, Epoch
from pipeline.train.network import CharCNN, predict
from pipeline.train.objective import Objective
from pipeline.train.recipe import Recipe

_WARMUP_FROM = 0.04  # share of the peak rate at the first step
_AVERAGE_FROM = 0.25  # share of the steps after which the average begins
_AUGMENTED_AT_ONCE = 4096  # articles, which bounds the memory that augmentation takes


@dataclass(frozen=True)
class Rows:
    """Encoded articles on the training device. ids: uint8 [N, length]. targets: as the objective takes them."""

    ids: Tensor
    targets: Tensor


@dataclass(frozen=True)
class Saving:
    """When and where checkpoints are written: every `every` epochs (0: never) to `path`, for `job`."""

    path: Path
    every: int
    job: dict[str, Any]


class Run:
    """A run of `recipe` from `seed` over the rows `train`, evaluated on the rows `held_out` (maybe none)."""

    def __init__(
        self,
        network: CharCNN,
        train: Rows,
        held_out: Rows,
        alphabet: Alphabet,
        recipe: Recipe,
        objective: Objective,
        seed: int,
    ) -> None:
        self.network, self.recipe, self._objective = network, recipe, objective
        self._train, self._held_out, self._alphabet, self._seed = train, held_out, alphabet, seed
        self._device = train.ids.device
        self._batch = min(recipe.batch_size, len(train.ids))
        self._steps_per_epoch = len(train.ids) // self._batch
        self._all_steps = self._steps_per_epoch * recipe.epochs
        self.average = copy.deepcopy(network).requires_grad_(False)
        self._optimizer = _optimizer(network, recipe, fused=self._device.type == "cuda")
        self._steps = 0
        self.history: tuple[Epoch, ...] = ()

    def finish(self, on_epoch: Callable[[Epoch], None], saving: Saving) -> None:
        """Train the epochs that are left, and call `on_epoch` after each. Raises BroadsheetError where it diverges."""
        for number in range(len(self.history) + 1, self.recipe.epochs + 1):
            # The draws of an epoch depend on its number alone, so a checkpoint needs no generator state.
            torch.manual_seed(self._seed * 1_000_003 + number)
            loss = self._epoch()
            if not math.isfinite(loss):
                raise BroadsheetError(f"the loss is {loss} in epoch {number}: try a lower --learning-rate")
            self.history += (Epoch(number, loss, self.held_out_accuracy()),)
            if saving.every and (number % saving.every == 0 or number == self.recipe.epochs):
                self._checkpoint(saving.job).save(saving.path)
            on_epoch(self.history[-1])

    def _epoch(self) -> float:
        self.network.train()
        losses = torch.zeros((), device=self._device)
        block = max(_AUGMENTED_AT_ONCE // self._batch, 1) * self._batch
        order = torch.randperm(len(self._train.ids), device=self._device)[: self._steps_per_epoch * self._batch]
        for rows in torch.split(order, block):
            changed = augment(self._train.ids[rows], self._alphabet, self.recipe)
            targets = self._train.targets[rows]
            for first in range(0, len(rows), self._batch):
                batch = slice(first, first + self._batch)
                losses += self._step(changed[batch], targets[batch])
        return float(losses) / self._steps_per_epoch

    def _step(self, ids: Tensor, targets: Tensor) -> Tensor:
        recipe = self.recipe
        rate = recipe.learning_rate * _rate(self._steps / self._all_steps, recipe.warmup)
        for group in self._optimizer.param_groups:
            group["lr"] = rate * group["share"]
        loss = self._objective.loss(self.network(ids), targets)
        self._optimizer.zero_grad()
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(self.network.parameters(), recipe.clip)
        self._optimizer.step()
        self._average()
        self._steps += 1
        return loss.detach()

    def _average(self) -> None:
        """Move the average towards the weights; in the first quarter of the steps it equals them."""
        decay = min(self.recipe.average, 1 - min(10 / self._all_steps, 1.0))
        weight = 1.0 if self._steps < _AVERAGE_FROM * self._all_steps else 1 - decay
        with torch.no_grad():
            torch._foreach_lerp_(list(self.average.parameters()), list(self.network.parameters()), weight)

    def held_out_accuracy(self) -> float:
        """Share of the held-out rows that the averaged network labels right."""
        if not len(self._held_out.ids):
            return math.nan
        right = self._objective.right(predict(self.average, self._held_out.ids), self._held_out.targets)
        return float(right.float().mean())

    def _checkpoint(self, job: dict[str, Any]) -> Checkpoint:
        named = dict(self.network.named_parameters())
        state = self._optimizer.state
        tensors: dict[str, dict[str, Tensor]] = {
            "weights": {name: p.detach() for name, p in named.items()},
            "average": dict(self.average.named_parameters()),
            "first": {name: state[p]["exp_avg"] for name, p in named.items()},
            "second": {name: state[p]["exp_avg_sq"] for name, p in named.items()},
        }
        return Checkpoint(job, self._steps, self.history, tensors)

    def go_on_from(self, checkpoint: Checkpoint) -> None:
        """Restore the state of a checkpoint; `finish` then trains the epochs after it."""
        self._steps, self.history = checkpoint.steps, checkpoint.history
        self.network.load_state_dict(checkpoint.tensors["weights"])
        self.average.load_state_dict(checkpoint.tensors["average"])
        for name, parameter in self.network.named_parameters():
            self._optimizer.state[parameter] = {
                "step": torch.tensor(float(self._steps), device=self._device),
                "exp_avg": checkpoint.tensors["first"][name].to(self._device),
                "exp_avg_sq": checkpoint.tensors["second"][name].to(self._device),
            }


def _rate(progress: float, warmup: float) -> float:
    """Share of the peak learning rate: up along a cosine from _WARMUP_FROM, then down along one to zero."""
    if progress < warmup:
        return _WARMUP_FROM + (1 - _WARMUP_FROM) * 0.5 * (1 - math.cos(math.pi * progress / warmup))
    return 0.5 * (1 + math.cos(math.pi * (progress - warmup) / (1 - warmup)))


def _optimizer(network: CharCNN, recipe: Recipe, fused: bool) -> torch.optim.AdamW:
    """AdamW without weight decay on biases, and with fc1's smaller rate (its decay a step stays that of the others)."""
    fc1 = network.get_submodule("fc1").weight
    decayed = [p for p in network.parameters() if p.ndim > 1 and p is not fc1]
    biases = [p for p in network.parameters() if p.ndim == 1]
    groups = [
        {"params": decayed, "weight_decay": recipe.weight_decay, "share": 1.0},
        {"params": biases, "weight_decay": 0.0, "share": 1.0},
        {"params": [fc1], "weight_decay": recipe.weight_decay / recipe.fc1_rate, "share": recipe.fc1_rate},
    ]
    return torch.optim.AdamW(groups, fused=fused)
